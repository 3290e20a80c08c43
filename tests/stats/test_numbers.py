"""Numbers as text."""

import pytest
from inside import interval, listed, measured, ordinal, p_value, percent, scientific

N = "\u202f"
TEXTS = {
    p_value: [
        ((0.4,), "p = .4"), ((0.034,), "p = .034"), ((1.0,), "p = 1"), ((0.01,), "p = .01"),
        ((0.0014,), "p = .0014"), ((0.00149,), "p = .0015"), ((0.157,), "p = .16"),
        ((0.001,), "p = .001"), ((0.000999,), "p < .001"), ((0.0002,), "p < .001"),
        # Near a limit there are as many digits as the side of it needs.
        ((0.0496,), "p = .0496"), ((0.04999,), "p = .04999"), ((0.0504,), "p = .05"),
        ((0.00999,), "p = .01"), ((0.00999, 0.01), "p = .00999"), ((0.0004, 0.01), "p < .001"),
        ((0.08, 0.05), "p = .08, limit .05"), ((0.01, 0.01), "p = .01, limit .01"),
        ((0.0101, 0.01), "p = .0101, limit .01"),
    ],
    percent: [((-0.034,), f"−3{N}%"), ((-0.004,), f"0{N}%"), ((1.0,), f"100{N}%")],
    measured: [
        ((0.0104, 0.006, 0.0148), f"1.0{N}% [0.6, 1.5]"),  # a narrow interval gets a decimal
        ((0.41, 0.35, 0.47), f"41{N}% [35, 47]"),
        ((0.063, -0.0049, 0.141), f"6.3{N}% [−0.5, 14.1]"),  # not [0, 14]
    ],
    scientific: [((6.2e-7,), "6 × 10⁻⁷"), ((0.0,), "0")],
    interval: [((-0.081, 0.052), "[−0.08, 0.05]")],
    listed: [(([*"a"],), "a"), (([*"ab"],), "a and b"), (([*"abc"],), "a, b and c")],
    ordinal: [
        ((1,), "first"), ((2,), "second"), ((12,), "twelfth"), ((13,), "13th"), ((21,), "21st"),
        ((22,), "22nd"), ((23,), "23rd"), ((24,), "24th"), ((111,), "111th"), ((113,), "113th"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("function", TEXTS)
def test_numbers_are_formatted_for_statistical_english_text(function):
    for arguments, text in TEXTS[function]:
        assert function(*arguments) == text
