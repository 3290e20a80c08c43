"""One's own sentences through a model, live: type, swap heads, see what becomes of the word and of what is said.

question   what can be asked: a record of plain JSON, checked
explorer   the answers, as messages of plain JSON; what was computed is kept
page       the one page, which shares the walk's template, scripts and charts
server     the page and its questions over HTTP on this machine: one worker, a token, limits
"""
