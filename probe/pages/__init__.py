"""Pages of results: templates and their filters, one HTML file, and a folder that is written whole
or not at all.

A report goes one way: study -> frames -> templates. The sentences of a section are in its template,
which reads the frames. What limits a sentence is a rule of `probe.claims`, and every rule is a
filter.

heads      what the map of heads and the lines of effects share over all words
sentences  single sentences, token by token
verdicts   the meaning of each verdict, and why a head has it
sections   the sections of a report and their headings
report     the page of a study, and what a notebook shows of a result
cues       the page of a cue scan
walk       the page of one sentence, step by step
survey     the page of a survey
templates/ headings, sentences, captions and the method in words; every page extends the shell
html       a self-contained HTML file: the shell, its style and scripts, and the filters
folder     page, tables and manifest as files; write and read: results into and from a folder
terminal   the output of commands: tables, progress
"""
