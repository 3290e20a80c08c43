"""Time and memory: what `analyses/speed.py` needs to compare this library with the usual implementations.

clock     interleaved timings, ratios, extra memory, exponents of growth, the machine
work      models of real shapes with random weights, aligned pairs, sets of a curve, loops over heads and edges as in other tools
waiting   the cost of waiting threads
page      tables and charts -> speed.html
"""

from timing.clock import (
    compare,
    exponent,
    exponents,
    extra_memory,
    interleave,
    machine,
    single_value,
    square_part,
)
from timing.page import write_page
from timing.work import (
    aligned_pairs,
    architecture,
    attribution_by_autograd,
    attribution_by_transformer_lens,
    bare_forward,
    both_ways_by_gradients,
    curve_sets,
    drawn_texts,
    growth,
    long_text,
    loop_over_edges,
    loop_over_heads,
    plain_model,
    random_tokens,
    shaped,
    start_up,
    tokens_of,
)

__all__ = [
    "aligned_pairs",
    "architecture",
    "attribution_by_autograd",
    "attribution_by_transformer_lens",
    "bare_forward",
    "both_ways_by_gradients",
    "compare",
    "curve_sets",
    "drawn_texts",
    "exponent",
    "exponents",
    "extra_memory",
    "growth",
    "interleave",
    "long_text",
    "loop_over_edges",
    "loop_over_heads",
    "machine",
    "plain_model",
    "random_tokens",
    "shaped",
    "single_value",
    "square_part",
    "start_up",
    "tokens_of",
    "write_page",
]
