"""One sentence through one model, step by step, with its real numbers; of an encoder-decoder, a
target and what it reads of its source. It computes; what is said of the numbers stands in
`probe.pages`.

Read the modules in this order:

scene      what every part looks at: an attention at work, the word, the head, the tokens that are
           drawn; the causal trace of two sentences
choose     which word, which second sentence, which head is followed first, by which criterion
numbers    every quantity of every step, computed once, for all heads and tokens
frames     the same numbers as tables of what is followed first, and packed for the page's script
           (torch stops here)
walk       all of it together, behind a certificate -> Walk
"""
