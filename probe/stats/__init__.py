"""Statistics on arrays: axes, resampling and permutation tests, and numbers as text.

numbers       percentages and digits as they are printed
resampling    bootstrap, AUROC, Hedges' g, the margin for ties; permutation tests, sign flips, max-T
              and the gap test
across_words  inference with words as units: ratios of sums, bootstrapped and sign-flipped
axes          sense axes of the residual stream and the read-out layer
separation    a direction for each head, the held-out AUROC of its writes, a word's corrected tests
limits        thresholds from which a result counts
"""
