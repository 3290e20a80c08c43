"""A pretrained transformer: loaded, hooked, traced, and computed a second time from its raw
weights.

attention                   the formulas
architectures               the table of families, one row each
model, weights              the record of a model and its sizes; the record of one stack's weights
config                      sizes and switches, from transformers' config object
find, gguf, bridge, load    from a name to a checked Model
tokens, records, trace      text to tokens; the contents of a trace; hooks to traces
forward, batched, check     the forward from scratch; the batched one for swaps; the certificate
                            that compares hooks with the forward from scratch
decomposition, parameters   the residual stream as a sum and as words; the number of parameters
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["decomposition"])
