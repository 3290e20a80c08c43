"""Thresholds of the tests, and the smallest effects and samples that count."""

# p of the gap. Stricter than LEVEL, because every later result is a ratio over that gap.
GATE = 0.01
# Words of a survey. With fewer, sign flips cannot give a p below GATE.
FEWEST_WORDS = 7
# The family-wise error rate of the corrected tests of a word's heads.
LEVEL = 0.05
# A fraction of the gap. Smaller swaps are lost among the heads of one layer, however certain.
SMALLEST = 0.02
# A fraction of the gap, five times SMALLEST: an effect this large needs no second sign.
LARGE = 0.1
# A fraction of a sentence's sense coordinate. Smaller ones are summed into "everything else".
WORTH_NAMING = 0.1
# Unambiguous nouns. With one fewer, the smallest p of the ambiguity gate would exceed LEVEL.
FEWEST_NOUNS = 19
# Sentences of a word that is compared with unambiguous nouns.
FEWEST_SENTENCES = 24
# Unambiguous nouns, for the comparison of a head.
FEWEST_COMPARED = 3
# Sentences per sense: with fewer, a result is called exploratory.
FEW = 50
# Pairs of cue words. With fewer, no p of a swap is below 2^-12, however clear the effect.
FEW_CUES = 12
