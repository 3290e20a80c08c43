"""Inference from the measurements: tests, intervals and verdicts.

within    for one word, with its cue words as the sample
across    for a model, with words as the sample
nouns     the comparison with unambiguous nouns in the word's place
ablation  the accuracy that is lost without sets of heads
verdicts  the verdict on every head
"""
