"""The walk, one text through one model step by step, and the explorer, which is the walk live: type
sentences, swap heads, see what becomes of the word. Nothing outside this package imports it.

To add a step to the walk, follow one that exists, such as what the norm does:

1. its numbers (`before`, `after`): `numbers.py`, a name in NAMES_BY_AXES and a line where it is
   computed. With that, the page's script has it as `get("name", ...)`.
2. its table (`layer_norm`): a function in `frames.py`, a row in `frames`, its columns in
   `columns.toml`.
3. its picture (`lengths`): a function in `charts.py`, a row in `pictures`; its rows for other heads
   and tokens (`norms`) in `live` of `templates/walk.js`.
4. its question and text (`layernorm`): a section of `templates/walk.html.j2`, with the formula that
   was run.
5. its test: `tests/walk`.

The modules, in the order in which data pass through them:

scene      the inputs of every step: an attention, the word, the head, the drawn tokens
choose     which word, which second sentence and which head is followed first
axes       the axis between two meanings, and how far each head moves the word along it
pair       the causal trace of two sentences
numbers    every quantity of every step, for all heads and tokens
frames     these numbers as tables
block      and for the page's script; torch stops here
sentences  the sentences, fixed, with numbers filled in
walk       everything together, after a certificate: `probe.walk` -> Walk
record     a Walk as a file
charts     the pictures of a Walk
page       the page of a Walk, its folder, its view in a notebook
questions  what the explorer's page may ask
explorer   the answers: messages of plain JSON, with cached runs
explore    the explorer's page, live or saved; `probe.explore`
server     the page and its questions over HTTP on this machine: one lock, a token, limits
"""
