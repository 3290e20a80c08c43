"""Inference from the measurements: tests, intervals and verdicts.

across    for a model, with words as the sample
ablation  the accuracy that is lost without sets of heads
verdicts  the verdict on every head
"""
