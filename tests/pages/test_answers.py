"""Numbers as text."""

import pytest
from test_sentences import N

from probe.stats.numbers import interval, listed, measured, ordinal, p_value, percent, scientific

P_VALUES = {
    0.4: ".4",
    0.034: ".034",
    1.0: "1",
    0.01: ".01",
    0.0014: ".0014",
    0.00149: ".0015",
    0.157: ".16",
}
P_VALUES |= {0.001: ".001", 0.0496: ".0496", 0.04999: ".04999", 0.0504: ".05", 0.00999: ".01"}
NUMBERS = [
    *((p_value(value), f"p = {text}") for value, text in P_VALUES.items()),
    *((p_value(value), "p < .001") for value in (0.0002, 0.000999)),
    (p_value(0.08, 0.05), "p = .08, limit .05"),
    (p_value(0.01, 0.01), "p = .01, limit .01"),
    (p_value(0.0101, 0.01), "p = .0101, limit .01"),
    (p_value(0.00999, 0.01), "p = .00999"),
    (p_value(0.0004, 0.01), "p < .001"),
    *(
        (percent(value), f"{text}{N}%")
        for value, text in {-0.034: "−3", -0.004: "0", 0.0: "0", 1.0: "100"}.items()
    ),
    (measured(0.0104, 0.006, 0.0148), f"1.0{N}% [0.6, 1.5]"),  # a narrow interval gets a decimal
    (measured(0.41, 0.35, 0.47), f"41{N}% [35, 47]"),
    (measured(0.063, -0.0049, 0.141), f"6.3{N}% [−0.5, 14.1]"),  # not [0, 14]
    (scientific(6.2e-7), "6 × 10⁻⁷"),
    (scientific(0.0), "0"),
    (interval(-0.081, 0.052), "[−0.08, 0.05]"),
    *(
        (listed(list(items)), text)
        for items, text in {"a": "a", "ab": "a and b", "abc": "a, b and c"}.items()
    ),
    *((ordinal(rank), text) for rank, text in {1: "first", 2: "second", 12: "twelfth"}.items()),
    *(
        (ordinal(rank), f"{rank}{end}")
        for rank, end in {13: "th", 21: "st", 22: "nd", 23: "rd", 24: "th"}.items()
    ),
    *((ordinal(rank), f"{rank}th") for rank in (111, 112, 113)),
]


@pytest.mark.parametrize(("output", "text"), NUMBERS)
def test_numbers_are_formatted_for_statistical_english_text(output, text):
    assert output == text
