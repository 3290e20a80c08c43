"""A pretrained transformer, loaded, hooked, traced, and computed a second time from its raw
weights.

attention                        the formulas
architectures                    the table, one row a family
model, weights                   the record of a model and its sizes; the record of one stack's
                                 weights
config                           sizes and switches, from transformers' config object
find, gguf, bridge, load         from a name to a checked Model
tokens, records, trace           text to tokens, what a trace holds, hooks to traces
forward, check                   the forward from scratch; the certificate that holds it against the
                                 hooks
decomposition, parameters        the residual stream as a sum and as words; how many numbers there
                                 are
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["decomposition"])
