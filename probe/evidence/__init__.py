"""One word measured, a study of several, how well layers tell senses apart, and the border to
pandas.

material            the words of a study, their sentences in tokens
design, effects     pairs, donors and readings; the effects of swaps
curves, head_parts  how many heads are enough; what a head's effect is made of
word                one word's results and controls
cost                what a study will take, before the work
study, evaluation   the two public functions: a study; the evaluation by nearest sense centroids
survey_summary      many words to a statement about a model
patch               swaps in texts of one's own, by a metric of one's own
logits              what every component adds to a logit
examples            single sentences to look at
circuit             edges and paths from the cue to the word
columns, tables     results to frames, and what each column means
"""
