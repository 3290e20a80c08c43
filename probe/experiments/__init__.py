"""Measurements of one word, as arrays with named axes, and their tables with tests.

material, candidates      the sentences of a word in tokens; the nouns that can replace the word
beside_nouns              the comparison of parts on the word and on nouns
design                    which sentence is the donor of which, and where heads are read
options                   how much is measured
observe, prepare          the unchanged runs of a word; pairs and gates before any swap
swaps                     the effect of every head's swap
measure, record, store    the measurement of one word; its record; records as files
table, run                the experiments; the runs they share
senses, heads, nouns, head_parts, backups, sets, controls, shares, readings, circuit, qk, ...
                          the experiments, one file each, with a template next to it
cues                      frames, cues and their readings, for a sample in a report and a whole scan
"""
