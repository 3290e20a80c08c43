"""Which attention heads of a transformer resolve an ambiguous word, from which cue, and how do we
know?

The public names are listed in `__init__.pyi`, in pipeline order. Each is imported on first use, so
that `import probe` loads neither torch nor pandas. The packages are listed in the order in which
data pass through them. A module imports only from its package and from packages above it.

* errors, progress, provenance, display: messages to the user; the origin of a result; its view in a
  notebook
* text: sentences and their files, the lexicon, splits
* stats: axes, resampling, permutation tests, number formats
* model: the table of architectures, loading, hooks, traces, the forward pass from raw weights that
  swaps run, the certificate, the decomposition of the residual stream
* patching: swaps of heads, sets, positions, edges, cross-attention: from tensors to tensors
* verdicts, claims: what may be said of heads and words
* experiments: one question about a word each: measurements and tests as arrays, tables, what a page
  shows of it
* results: the tables of all experiments as frames, with their columns
* charts: from frames to charts
* studies: a study of words, a survey of words in general
* pages: report, survey, cues: one HTML file and a folder that is complete or absent
* walks: the walk, every step of attention on one text or two, and the explorer, which is the walk
  live, on the user's sentences: numbers, charts, pages and server
* cli: parse, call one library function, write
"""

import sys
from typing import TYPE_CHECKING

import lazy_loader

from probe import display

if TYPE_CHECKING:
    from pathlib import Path

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _version() -> str:
    """The version in the metadata of the distribution; "not installed" if only the sources
    exist."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("probe-heads")
    except PackageNotFoundError:
        return "not installed"


def _register_formatters() -> None:
    """Import the pages, which register the formatters of results, and the walk's only where there
    can be a walk. A notebook calls this when it first shows a result."""
    from probe.pages import report  # noqa: F401 (registers on import)

    if "probe.walks.walk" in sys.modules:
        from probe.walks import page  # noqa: F401 (registers on import)


def _read_walk(path: "Path", **shared: object) -> object:
    """The walk that `probe.write` wrote into a folder."""
    from probe.walks.record import read_walk

    return read_walk(path, **shared)


display.register_formatters = _register_formatters
display.readers["walk.record"] = _read_walk


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name not in __all__:
        raise AttributeError(
            f"module 'probe' has no attribute {name!r}; its public names are {', '.join(__all__)}"
        )
    return _public(name)
