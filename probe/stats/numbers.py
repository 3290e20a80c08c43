"""Numbers as text for sentences, charts and tables: true minus signs, never −0, intervals in
brackets.
"""

import math

NARROW = "\u202f"
NARROW_INTERVAL = 3.0  # percentage points: a narrower interval is written with a decimal
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def decimal(value: float, digits: int = 2) -> str:
    """The number with a true minus sign: −0.02; 0.00 for anything that rounds to zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def percent(value: float, digits: int = 0) -> str:
    """A fraction as a percentage, without decimals by default: −3 %."""
    return f"{decimal(100 * value, digits)}{NARROW}%"


def distance_percent(share: float) -> str:
    """The ratio of two distances as a signed percentage, from the ratio of their squares: 50 %
    for .25.
    """
    return percent(math.copysign(math.sqrt(abs(share)), share))


def interval(low: float, high: float, digits: int = 2) -> str:
    """The two ends in brackets: [−0.08, 0.05]."""
    return f"[{decimal(low, digits)}, {decimal(high, digits)}]"


def measured(value: float, low: float, high: float) -> str:
    """A fraction in percent with its 95 % interval: 41 % [35, 47]. A narrow interval has a
    decimal: 1.0 % [0.6, 1.5]. So has one with an end that would be rounded to 0, to show whether it
    includes 0: 6.3 % [−0.5, 14.1].
    """
    is_narrow = 100 * (high - low) < NARROW_INTERVAL
    rounds_to_zero = any(0 < abs(100 * end) < 0.5 for end in (low, high))
    digits = 1 if is_narrow or rounds_to_zero else 0
    return f"{percent(value, digits)} {interval(100 * low, 100 * high, digits)}"


LEVEL = 0.05  # of the tests: a p below it is never written as ".05"


def p_value(p: float, limit: float | None = None) -> str:
    """The p with two significant digits: p = .034, p = .0014, p = 1.

    It has more digits if two would round it across LEVEL. Below .001 it is "p < .001". A p that is
    not below its limit is followed by the limit: p = .08, limit .05.

    Example:
        >>> from probe.stats.numbers import p_value
        >>> p_value(0.08, 0.05), p_value(0.0101, 0.01), p_value(0.002, 0.01)
        ('p = .08, limit .05', 'p = .0101, limit .01', 'p = .002')
    """
    if p < 0.001:
        return "p < .001"
    texts = [f"{p:.{digits}g}" for digits in (2, 3, 4, 5)]
    same_side = [text for text in texts if (float(text) < LEVEL) == (p < LEVEL)]
    if limit is not None:  # next to its limit, a p is not rounded to it
        same_side = [text for text in same_side if _side(float(text), limit) == _side(p, limit)]
    text = f"p = {(same_side or texts)[0]}".replace("= 0.", "= .")
    return text if limit is None or p < limit else f"{text}, limit {bare(limit)}"


def _side(p: float, limit: float) -> tuple[bool, bool]:
    return p < limit, p > limit


def bare(limit: float) -> str:
    """A limit in the form of a p: .05"""
    return f"{limit:g}".removeprefix("0")


def grouped(number: int) -> str:
    """A whole number with narrow spaces between thousands: 12 345."""
    return f"{number:,}".replace(",", NARROW)


def scientific(value: float) -> str:
    """One digit and a power of ten: 6 × 10⁻⁷; 0 for exactly zero."""
    if value == 0:
        return "0"
    digit, exponent = f"{value:.0e}".split("e")
    return f"{digit} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def memory_size(amount: float) -> str:
    """A number of bytes as 2.8 GB, or as 12 MB below 0.1 GB."""
    return f"{amount / 1e9:.1f} GB" if amount >= 1e8 else f"{amount / 1e6:.0f} MB"


def listed(items: list[str]) -> str:
    """The items joined for a sentence: a; a and b; a, b and c."""
    return " and ".join(part for part in (", ".join(items[:-1]), *items[-1:]) if part)


ORDINALS = (
    *("first", "second", "third", "fourth", "fifth", "sixth"),
    *("seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth"),
)


def ordinal(number: int) -> str:
    """The ordinal of a number: first for 1, twelfth for 12, then 13th, 21st."""
    if number <= len(ORDINALS):
        return ORDINALS[number - 1]
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def counted(number: int, noun: str, *, words: bool = False) -> str:
    """A number with its noun: 1 head, 4 heads.

    With `words`, for the start of a sentence: One head, Four heads, 12 heads.
    """
    many = SMALL[number].capitalize() if words and number < len(SMALL) else str(number)
    return f"{many} {noun if number == 1 else f'{noun}s'}"
