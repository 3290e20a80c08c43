"""One's own sentences through a model, live: type, swap heads, see what becomes of the word and of what is said.

question   what can be asked: a record of plain JSON, checked
explorer   the answers, as messages of plain JSON; what was computed is kept
page       the one page, which shares the walk's template, scripts and charts
desk       questions in line: what ends one, how many wait
server     the page and its questions over HTTP on this machine: one worker, a token, limits
notebook   `probe.explore`: the page in a notebook; widget is the class that anywidget needs, still what is saved of it
"""
