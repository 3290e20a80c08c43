"""From what was found to pages: values for the templates, one HTML file, and the folder that is
whole or absent.

A report goes one way: study -> findings (`probe.results.findings`) -> views -> templates. A view
takes records and gives plain values and charts; the sentences of a section stand in its template.

answer     the one sentence and the one table that answer, for page, terminal and notebook
words      view: the first screen, and a card for each word
heads      view: maps, leading heads, sets of heads, shares, the table of all heads
paths      view: from the cue to the word; attribution_graph: its edges as a file for other viewers
sentences  view: single sentences, token by token; sources: what supplies their sense, in words
checks     view: controls, power, certificate, data, tables to download
report     the report of a study, what a notebook shows of a result, the writer of every kind of
           result
walk       the page of one sentence, step by step
templates/ the pages themselves: headings, sentences, captions and the method in words
output     a self-contained HTML file; page, tables and manifest as files; whether a folder can be
           written
terminal   what a command prints: tables, progress
"""
