"""From frames to pages: what may be said of a result, its one HTML file, and the folder that is
whole or absent.

rows       what of a study's frames a page speaks of
answers    the answer for each word; remarks: the sentences around it; what may be claimed is bound
           in these two
sections   the sections of a report as plain values; ways: the one from the cue to the word;
           excerpts: single sentences
report     the report of a study, what a notebook shows of a result, the writer of every kind of
           result
sweep      the page of a sweep, from its shards alone
walk/      one sentence, step by step
templates/ the pages themselves: headings, captions and the method in words
output     a self-contained HTML file; page, tables and manifest as files; whether a folder can be
           written
terminal   what a command prints: tables, progress
"""
