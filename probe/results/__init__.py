"""The border to pandas: tidy frames of what was measured, the meaning of every column, and what a
page may claim.

columns, frames       the tables of a report
findings              what was found for a word; survey_findings: for a model over words
circuit, readings     edges and paths from the cue to the word; single sentences to look at
evaluation, ablation  how well layers tell senses apart, also with heads taken out
"""
