"""One sentence through one model, step by step, with its real numbers; or what a translation reads of its source.

choose     which word, which other sentence, which head, which tokens are drawn
scene      what every part looks at
steps      the functions of `probe.attention` run on hooked tensors, and held against the hooks
stream     the word's vector through the layers
frames     tensors -> tables (torch stops here)
carried    tensors -> what the page needs to follow another head or token
record     all of it together -> Walk
page       frames and charts -> one HTML file
cross, cross_frames, cross_page    the same for cross-attention: its record -> CrossWalk, tables and arrays, the page
folder     page, tables and manifest -> files
"""

from probe.walk.cross import CrossWalk
from probe.walk.folder import write_walk
from probe.walk.record import Walk, walk

__all__ = ["CrossWalk", "Walk", "walk", "write_walk"]
