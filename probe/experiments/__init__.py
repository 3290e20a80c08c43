"""What is measured on a word, as arrays: no pandas, and no conclusion.

material         the sentences of a word in tokens, and what is left out
design           which sentence gives to which, and where heads are read
swaps            the effect of every head's swap
head_parts       what a head's effect is made of
nouns            unambiguous nouns in the word's place
sets             how few heads are enough
word             one word for a report; survey_word: one word for a survey
patch, logits    texts of one's own: every head swapped; what adds to a logit
"""
