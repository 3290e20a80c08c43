"""One's own sentences through a model, live: type, swap heads, see what becomes of the word and of what is said.

questions  what can be asked, checked, and answered as messages of plain JSON; what was computed is kept
page       the one page, which shares the walk's template, scripts and charts
server     the page and its questions over HTTP on this machine: one worker, a token, limits
"""
