"""A pretrained transformer: loaded, hooked, traced, and computed a second time from its raw
weights.

attention                   the formulas
architectures               the table of families, one row each
model, weights              the record of a model and its sizes; the record of one stack's weights
config                      sizes and switches, from transformers' config object
find, gguf, bridge, load    from a name to a checked Model
tokens, records, trace      text to tokens; the contents of a trace; hooks to traces
blocks, forward, variants   the steps of one block; what comes before the first and after the
                            last; the loop over blocks, also of runs with edits
kept_keys                   keys and values before a word, kept while several runs need them
check                       the certificate, which compares the hooked model with these
decomposition, parameters   the residual stream as a sum and as words; the number of parameters
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["decomposition"])
