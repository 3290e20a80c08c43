"""What follows from the measurements: tests, intervals and verdicts.

within, across  for one word, over its cue words; for a model, over words
nouns           the comparison with unambiguous nouns in a word's place
circuit         the edges from the cue to the word
verdicts        the verdict on every head
"""
