"""Numbers as text, in sentences, charts and tables: true minus signs, never −0, intervals in
brackets."""

import math

NARROW = "\u202f"
NARROW_INTERVAL = 3.0  # percentage points: a narrower interval is written with a decimal
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def decimal(value: float, digits: int = 2) -> str:
    """−0.02; 0.00 for what rounds to zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def percent(value: float, digits: int = 0) -> str:
    """A fraction as a percentage, whole by default: −3 %."""
    return f"{decimal(100 * value, digits)}{NARROW}%"


def distance_percent(share: float) -> str:
    """The ratio of two distances as a percentage, from that of their squares, with its sign: 50 %
    of .25."""
    return percent(math.copysign(math.sqrt(abs(share)), share))


def interval(low: float, high: float, digits: int = 2) -> str:
    """[−0.08, 0.05]"""
    return f"[{decimal(low, digits)}, {decimal(high, digits)}]"


def measured(value: float, low: float, high: float) -> str:
    """A fraction in percent with its 95 % interval, 41 % [35, 47]; a narrow one with a decimal, 1.0
    % [0.6, 1.5]."""
    digits = 1 if 100 * (high - low) < NARROW_INTERVAL else 0
    return f"{percent(value, digits)} {interval(100 * low, 100 * high, digits)}"


LEVEL = 0.05  # of the tests: a p below it is never written as ".05"


def p_value(p: float, limit: float | None = None) -> str:
    """p = .034, p = .0014: two significant digits, more where two would cross LEVEL; p < .001 below
    that; p = 1. With the limit that it has to be below, and is not: p = .08, limit .05.

    Example:
        >>> from probe.stats.numbers import p_value
        >>> p_value(0.08, 0.05), p_value(0.0101, 0.01), p_value(0.002, 0.01)
        ('p = .08, limit .05', 'p = .0101, limit .01', 'p = .002')
    """
    if p < 0.001:
        return "p < .001"
    texts = [f"{p:.{digits}g}" for digits in (2, 3, 4, 5)]
    kept = [text for text in texts if (float(text) < LEVEL) == (p < LEVEL)]
    if limit is not None:  # beside its limit, a p is not rounded to it
        kept = [text for text in kept if _side(float(text), limit) == _side(p, limit)]
    shown = f"p = {(kept or texts)[0]}".replace("= 0.", "= .")
    return shown if limit is None or p < limit else f"{shown}, limit {bare(limit)}"


def _side(p: float, limit: float) -> tuple[bool, bool]:
    return p < limit, p > limit


def bare(limit: float) -> str:
    """A limit as p is written: .05"""
    return f"{limit:g}".removeprefix("0")


def grouped(number: int) -> str:
    """12 345: thousands apart by a narrow space."""
    return f"{number:,}".replace(",", NARROW)


def scientific(value: float) -> str:
    """One digit and a power of ten, 6 × 10⁻⁷; 0 for exactly zero."""
    if value == 0:
        return "0"
    digit, exponent = f"{value:.0e}".split("e")
    return f"{digit} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def memory_size(amount: float) -> str:
    """Bytes as 2.8 GB; as 12 MB below 0.1 GB."""
    return f"{amount / 1e9:.1f} GB" if amount >= 1e8 else f"{amount / 1e6:.0f} MB"


def listed(items: list[str]) -> str:
    """a; a and b; a, b and c."""
    return " and ".join(part for part in (", ".join(items[:-1]), *items[-1:]) if part)


ORDINALS = (
    *("first", "second", "third", "fourth", "fifth", "sixth"),
    *("seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth"),
)


def ordinal(place: int) -> str:
    """first for 1, twelfth for 12; then 13th, 21st."""
    if place <= len(ORDINALS):
        return ORDINALS[place - 1]
    ending = "th" if place // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"


SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def counted(number: int, noun: str, *, words: bool = False) -> str:
    """1 head; 4 heads; with `words`, at the start of a sentence: One head, Four heads, 12 heads."""
    many = SMALL[number].capitalize() if words and number < len(SMALL) else str(number)
    return f"{many} {noun if number == 1 else f'{noun}s'}"
