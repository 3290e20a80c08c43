"""Sentences through a model, live: type, swap heads, see what becomes of the word and of
what the model predicts.

page           the one page, which shares the walk's template, scripts and charts, and the questions
               that it can ask
session        the answers, as messages of plain JSON; results are cached
saved          the page as one file, which answers from a recording
request_queue  questions in line: what ends one, how many wait
server         the page and its questions over HTTP on this machine: one worker, a token, limits
notebook       `probe.explore`: the page in a notebook
widget         the class that anywidget needs, and the picture that stays of it in a saved notebook
"""
