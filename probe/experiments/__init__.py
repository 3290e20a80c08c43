"""What is measured on a word, as arrays: no pandas, and no conclusion.

material, candidates      the sentences of a word in tokens; which nouns can take its place
design                    which sentence gives to which, and where heads are read
options                   how much is measured
observe, prepare          the unchanged runs of a word; pairs and gates before anything is swapped
swaps                     the effect of every head's swap
measure, record, store    one word measured; what was measured; records as files
table, run, plan          the other experiments; the runs they share; how much work they are
separations, nouns, head_parts, backup, sets, controls, shares, readings, circuit
                          the experiments, one file each
patch, logits, centroids  on the user's texts: every head swapped; the terms of a logit; the nearest
                          sense
"""
