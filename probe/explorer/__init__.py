"""Sentences through a model, live: type, swap heads, see what becomes of the word and of
what the model predicts.

page      the one page, which shares the walk's template, scripts and charts, and the questions that
          it can ask
session   the answers, as messages of plain JSON; results are cached
saved     the page as one file, which answers from a recording
server    the page and its questions over HTTP on this machine: one lock, a token, limits
notebook  `probe.explore`: the saved page in a notebook
"""
