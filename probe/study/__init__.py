"""One word measured, a study of several, how well layers tell senses apart, and the border to pandas.

material                        a word's sentences placed in tokens
word, cost                      one word's results and controls; what a study will take
study, evaluation               the front doors; the evaluation by nearest sense centroids
examples, suppliers             single sentences to look at
ways                            where the sense travels, from the cue to the word
columns, tables                 results to frames, and what each column means
"""
