"""One sentence through one model, step by step, with its real numbers; of families beside GPT-2, one attention.

choose     which word, which other sentence, which head, which tokens are drawn
scene      what every part looks at
steps      the functions of `probe.model.attention` run on hooked tensors, and held against the hooks
stream     the word's vector through the layers
frames     tensors -> tables (torch stops here)
carried    tensors -> what the page needs to follow another head or token
record     all of it together -> Walk
page       frames and charts -> one HTML file
attended, attended_frames, attended_page    the same for one attention, cross or own: its record -> AttentionWalk, tables and arrays, the page
folder     page, tables and manifest -> files
"""

from probe.pages.walk.attended import AttentionWalk
from probe.pages.walk.folder import write_walk
from probe.pages.walk.record import Walk, walk

__all__ = ["AttentionWalk", "Walk", "walk", "write_walk"]
