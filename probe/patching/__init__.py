"""Interventions, each performed exactly: replace part of a run, and measure how far the read-out
moves.

Tensors and token ids in, tensors out. These modules know nothing of senses, folds or sentences.

inputs      checks of the arguments, before anything runs
heads       swaps of every head, of pairs in both directions, and of sets of heads; their read-outs
gradients   estimates of swaps of heads by gradients
mlps        swaps of MLPs and mixers
tokens      other tokens in the word's position
sets        sets of heads: masks, curve sizes, random matches, faithfulness
pair        two cached runs; a run that goes on from a changed stream, frozen or patched; text
            generated from a patched run
positions   causal trace: stream, attention, MLP and every head, at every layer and at every
            position from the cue to the word
edges       every edge from a writer to a reader: fraction of the receiver's swap, direct and total
            effect; composition
cross       heads of cross-attention, source words, direct logit attribution by source
score_parts the parts of a query or a key, each replaced by a donor's

All of them are runs of the loop over blocks, `probe.model.variants`, or call its steps,
`probe.model.blocks`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["cross"])
