"""Interventions, each performed exactly: one head's output at the word replaced, and how far the
read-out moves. Tensors and token ids in, tensors out; nothing here knows senses, folds or
sentences.

inputs      what callers give, checked before anything runs
variants    the loop over blocks: unchanged runs and variants of a run, with heads, mixers or MLPs
            edited
heads       swaps of every head, of pairs both ways, of sets of heads; what is read of variants
gradients   estimates of swaps of heads by gradients
mlps        swaps of MLPs and mixers
tokens      other tokens in the word's place
hooked      swaps of sets in a model whose owner's hooks stay on: each variant a whole forward
sets        sets of heads: masks, sizes of a curve, random matches, faithfulness
pair        two runs cached whole; a run frozen or patched behind a change of its stream at any site
            and position, and text generated behind a patch
positions   causal trace: stream, attention, MLP and every head at every layer and position from the
            cue to the word
edges       every edge, from what writes to what reads it: fraction of the receiver's swap, direct
            and total effect
paths       chains of edges from the cue to the word, alone, together and down to a circuit;
            composition
cross       heads of cross-attention, source words, direct logit attribution by source

All of them run on the fused steps of a block, `probe.model.fused`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["cross"])
