"""The studies: choose words, measure, conclude, return.

study        which heads move the meaning of each word
plan         what its sentences are enough for
survey       which heads move the meaning of words in general; survey_word: one word of it
across       the tables of a survey, from arrays of all words
words        records of single words, kept as files
workers      where the words of a survey are measured: in this process, or by Dask
evaluation   sense accuracy at every depth, also without some heads; heads_given: how they are named
cues         every word of the vocabulary as a cue
patch        swaps in two texts
attribution  QK and OV attribution of one head
decompose    direct logit attribution: what each component adds to a logit
"""
