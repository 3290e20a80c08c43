"""Interventions, each performed exactly: one head's output at the word replaced, and how far the read-out moves.

engine    the fused forward that carries variants of a run
swaps     every head, pairs both ways, sets of heads
effects   pairs and donors; swap effect, direct effect, same-sense donor
routes    where a head looks against what it carries; by distance; ablation
sets      faithfulness and necessity of sets of heads
cross     heads of cross-attention, source words, direct logit attribution by source
"""
