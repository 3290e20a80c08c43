"""Which heads may lead a list, a card or a scale."""

import pandas as pd

from probe.results.findings import names_of
from probe.results.leading import leading, named

HEADS = [
    # verdict, net, by rank. The first has the largest mean and a wide interval.
    ("none", 0.55),
    ("suggestive", 0.4),
    ("mover", 0.3),
    ("separates", 0.2),
    ("resolver", 0.1),
    ("unread", 0.09),
    ("resolver", 0.05),
    ("opposes", -0.1),
]
FRAME = pd.DataFrame(
    [
        {"layer": layer, "head": 0, "verdict": verdict, "net": net, "rank": layer + 1}
        for layer, (verdict, net) in enumerate(HEADS)
    ]
)


def test_movers_lead_then_other_verdicts_and_never_a_head_without_one():
    assert names_of(leading(FRAME)) == ("L2H0", "L4H0", "L6H0", "L1H0", "L5H0")


def test_every_resolver_is_named_besides_the_top_heads():
    assert names_of(named(FRAME, 1)) == ("L2H0", "L4H0", "L6H0")
    assert names_of(named(FRAME, 4)) == ("L2H0", "L4H0", "L6H0", "L1H0")


def test_without_a_verdict_no_head_is_named():
    assert names_of(named(FRAME.assign(verdict="none"), 3)) == ()
