"""Interventions, each performed exactly: one head's output at the word replaced, and how far the
read-out moves.

engine    the fused forward: a block's queries, keys and values, its attention, what it writes
swaps     variants of a run carried on; every head, pairs both ways, sets of heads
effects   pairs and donors; swap effect, direct effect, same-sense donor
routes    where a head looks against what it carries; by distance; ablation
sets      faithfulness and necessity of sets of heads
live      two runs kept whole; a run carried on from a change of its stream at any layer and
          position, and written on
positions causal trace: stream, attention, MLP and every head at every layer and position from the
cue to the word
paths     every edge, from what writes to what reads it: fraction of the receiver's swap, direct and
          total effect
ways      chains of edges from the cue to the word, alone, together and down to the fewest;
          composition
cross     heads of cross-attention, source words, direct logit attribution by source
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["cross"])
