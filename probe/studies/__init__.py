"""The studies: choose words, measure, conclude, return.

study        which heads move the meaning of each word
cost         what a study will take: time, memory, sentences
survey       which heads move the meaning of words in general; survey_word: one word of it
words        records of single words, kept as files
workers      where the words of a survey are measured: in this process, or by Dask
evaluation   sense accuracy at every depth; heads_given: the heads to take out
cues         every word of the vocabulary as a cue
patch        swaps in two texts
attribution  QK and OV attribution of one head
decompose    direct logit attribution: what each component adds to a logit
"""
