"""Where a result begins to count: the limits of tests and the smallest effects."""

# p of the gap: stricter than LEVEL, because everything after it is a ratio over that gap
GATE = 0.01
FEWEST_WORDS = 7  # of a survey: flipping the signs of fewer gives no p below GATE
LEVEL = 0.05  # the family-wise error that the corrected tests of a word's heads keep
# Of the gap: below it a swap is lost among the heads of one layer, however certain it is.
SMALLEST = 0.02
LARGE = 0.1  # of the gap: five times what counts, so that an effect this large needs no second sign
# Of a sentence's sense coordinate: smaller shares of it are summed into "everything else".
WORTH_NAMING = 0.1
FEWEST_NOUNS = 19  # unambiguous ones: with one fewer the ambiguity gate cannot come to LEVEL
FEWEST_SENTENCES = 24  # that a word is compared with unambiguous nouns in
FEWEST_WITH_A_GAP = 3  # unambiguous nouns with a gap of their own that a head is compared on
# Unambiguous nouns that are compared. With up to 38 of them p <= LEVEL says that none changes as
# far as the word: with one that does it is 2 / 39. Of a sample of unambiguous nouns hardly more
# than one in 39 passes; with more nouns two could, which is more than 5 % of thirty.
MOST_NOUNS = 38
