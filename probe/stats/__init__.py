"""What a number is worth: axes, resampling and permutation tests, how numbers are written.

numbers       per cent and digits as they are printed
resampling    bootstrap, AUROC, Hedges' g, the one margin for ties; relabelled cue words, sign
              flips, max-T, the gate
across_words  words as units: ratios of sums, words bootstrapped, flipped and permuted, as a stream
axes          sense axes of the residual stream, the read-out depth
separation    heads' own directions, held-out AUROC of their writes, a word's corrected tests
limits        where a result begins to count
"""
