"""Frames in, altair charts out: one function per question, each picture readable alone, with a
title and a description.

Values are computed in the frame, never in the chart. Look and colours are decided in
`probe.charts.palette`. Nothing here imports torch or a model.

palette    colours, axes, legends; a chart as a file or a picture
maps       maps of heads; separation against effect, and under controls
depth      sense coordinates by depth
nouns      the word's gap by depth, compared with that of unambiguous nouns in its place
survey     many words at once: words and heads, heads of other words, distances by depth
evidence   sets of heads, distance from the cue, the parts of a head
circuit    positions and edges from the cue to the word
writes     who wrote the sense gap; the decomposition of one sentence
grid       what a walk shows: attention, planes of vectors, the word's vector on its way up

The names that pages and analyses use are listed in `__init__.pyi`, each once.
"""

import lazy_loader

# Not found lazily: nnsight gives every object a method `save`, modules too.
from probe.charts.palette import save as save

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
