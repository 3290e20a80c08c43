"""One sentence through one model, step by step, with its real numbers; of an encoder-decoder, a
target and what it reads of its source.

scene      what every part looks at: attention, word, head, the tokens that are drawn; the trace of
           two sentences
choose     which word, which other sentence, which head; what the lexicon knows of the word: the
           axis of its senses
numbers    every quantity of every step, computed once, for all heads and tokens
frames     the same numbers as tables of what is followed first, and packed for the page (torch
           stops here)
walk       all of it together -> Walk
page       frames and charts -> one HTML file, and a folder with the tables and the manifest
"""
