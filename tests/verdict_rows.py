"""The numbers of a resolver, and changes of them, for tests of verdicts and their reasons."""

from math import nan

RESOLVES = {
    "p_auroc": 0.001, "auroc": 0.93, "p_swap": 0.002, "p_opposes": 1.0,
    "p_next_token": 0.003, "next_token": 0.25,
    "net": 0.31, "net_low": 0.24, "net_high": 0.38, "direct": 0.22,
    "net_near": 0.33, "net_far": 0.3, "attention_previous": 0.2,
    "misplaced": 0.0, "untrained": 0.0,
    "p_stands_in": nan, "stands_in": nan, "stands_in_layer": nan, "stands_in_head": nan,
    # The word passes the ambiguity gate, and the head moves nouns a third as far as the word.
    "ambiguity_p": 1 / 50, "nouns_compared": 49,
    "nouns": 0.11, "more": 0.2, "more_low": 0.15, "more_high": 0.25, "p_more": 0.01,
    "more_word_axis": 0.2, "more_length": 0.2,
    # Its own write is twice as large at the word.
    "write_nouns": 0.11, "write_more": 0.11, "write_more_low": 0.05, "write_more_high": 0.2,
    "p_more_write": 0.01, "write_more_word_axis": 0.1, "write_more_length": 0.1,
}  # fmt: skip
NEAR_ONLY = {"net_near": 0.5, "net_far": 0.01, "attention_previous": 0.9}
AGAINST = {"net": -0.1, "net_low": -0.2, "net_high": -0.05, "p_swap": 1.0, "p_opposes": 0.01}
NO_MOVE = {"net": 0.01, "net_low": -0.01, "direct": 0.01, "p_swap": 0.4}
STANDS_IN = {"p_stands_in": 0.01, "stands_in": 0.4, "stands_in_layer": 0.0, "stands_in_head": 3.0}
SILENT = {"p_next_token": nan, "next_token": nan}
