"""One text through one model, step by step, with its real numbers.

For an encoder-decoder, it is a target and its attention to a source. This package computes; the
sentences about the numbers are in `probe.pages`.

Read the modules in this order:

scene      the inputs of every part: an attention, the word, the head, the drawn tokens; the causal
           trace of two sentences
choose     which word, which second sentence and which head is followed first, and by which
           criterion
numbers    every quantity of every step, computed once, for all heads and tokens
frames     these numbers as tables, and packed for the page's script (torch stops here)
walk       everything together, after a certificate -> Walk
"""
