"""Frames in, altair charts out: one function per question, each picture readable alone, with a title and a description.

Values are computed in the frame, never in the chart. Look and colours are decided in `probe.charts.palette`. Nothing
here imports torch or a model.

The public names stand in `__init__.pyi`, each once.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
