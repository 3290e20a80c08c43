"""Pages of results: values for the templates, one HTML file, and a folder that is written whole
or not at all.

A report goes one way: study -> findings (`probe.results.findings`) -> views -> templates. A view
takes records and returns plain values and charts. The sentences of a section are in its template.

answer     the headline and the facts, for the page, the terminal and the notebook
cards      view: the cards of the top heads
words      view: the size of a study, the facts of every word, how its meanings part
heads      view: maps, sets of heads, shares, the table of all heads
sentences  view: single sentences, token by token; predictions: those read as another meaning
checks     view: unambiguous nouns, controls, power, certificate, data, tables to download
sections   the sections of a report and their headings
report     the page of a study, and what a notebook shows of a result
cues       the page of a cue scan
walk       the page of one sentence, step by step
survey     the page of a survey
templates/ headings, sentences, captions and the method in words
html       a self-contained HTML file
folder     page, tables and manifest as files; write and read: results into and from a folder
terminal   the output of commands: tables, progress
"""
