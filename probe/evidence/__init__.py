"""One word measured, a study of several, how well layers tell senses apart, and the border to
pandas.

material            the words of a study, their sentences placed in tokens
word                one word's results and controls
study, evaluation   the front doors: a study with its cost; the evaluation by nearest sense
                    centroids
examples            single sentences to look at
ways                where the sense travels, from the cue to the word
columns, tables     results to frames, and what each column means
"""
