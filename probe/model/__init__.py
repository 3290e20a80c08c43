"""A pretrained transformer, loaded, hooked, traced, and computed a second time from its raw weights.

attention                        the formulas
architectures                    the table, one row a family
config, checkpoint, gguf_header, gguf, find, bridge, load
                                 from a name to a checked Model
model, weights                   the record of a model; the record of one stack's weights
tokens, hooks, records, trace    text to tokens, hooks to tensors, tensors to records
forward, check                   the forward from scratch; the certificate that holds it against the hooks
ledger, lens, parameters         the residual stream as a sum; what a vector reads as; how many numbers there are
"""
