"""The numbers of a resolver, which tests of verdicts change."""

import math

# A resolver; every test changes the numbers that its rule depends on.
RESOLVES = {
    "p_auroc": 0.001,
    "p_swap": 0.002,
    "p_opposes": 1.0,
    "p_next_token": 0.003,
    "next_token": 0.25,
    "auroc": 0.93,
}
RESOLVES |= {
    "net": 0.31,
    "net_low": 0.24,
    "net_high": 0.38,
    "direct": 0.22,
    "net_near": 0.33,
    "net_far": 0.3,
}
RESOLVES |= {"attention_previous": 0.2, "misplaced": 0.0, "untrained": 0.0}
RESOLVES |= dict.fromkeys(
    ("p_stands_in", "stands_in", "stands_in_layer", "stands_in_head"), math.nan
)
NEAR_ONLY = {"net_near": 0.5, "net_far": 0.01, "attention_previous": 0.9}
AGAINST = {"net": -0.1, "net_low": -0.2, "net_high": -0.05, "p_swap": 1.0, "p_opposes": 0.01}
NO_MOVE = {"net": 0.01, "net_low": -0.01, "direct": 0.01, "p_swap": 0.4}
STANDS_IN = {"p_stands_in": 0.01, "stands_in": 0.4, "stands_in_layer": 0.0, "stands_in_head": 3.0}
SILENT = {"p_next_token": math.nan, "next_token": math.nan}
