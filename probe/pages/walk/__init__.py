"""One sentence through one model, step by step, with its real numbers; of an encoder-decoder, a target and what it
reads of its source.

scene      what every part looks at: the attention, the word, the head, the tokens that are drawn
choose     which word, which other sentence, which head; what the lexicon knows of the word: the axis of its senses
tracing    one part at a time of one sentence put into the other
numbers    every quantity of every step, computed once, for all heads and tokens
frames     the same numbers as tables of what is followed first, and packed for the page (torch stops here)
walk       all of it together -> Walk
page       frames and charts -> one HTML file, and a folder with the tables and the manifest
"""
