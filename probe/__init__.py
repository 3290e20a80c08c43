"""Which heads of a transformer resolve an ambiguous word, by looking at which cue, and how do we know?

The public names stand in `__init__.pyi`, each once, in pipeline order. Each is imported when it is first asked for, so
that `import probe` loads neither torch nor pandas. The rooms, in the order in which data pass through them; a module
imports only from its own room and from rooms above it:

* errors, provenance: what a user is told; what made a result
* text: sentences and their files, the lexicon, splits
* stats: what a number is worth: axes, resampling, permutation tests, verdicts, how numbers are written
* model: the table of architectures, loading, hooks, traces, the from-scratch forward, the certificate, the ledger
* patching: the engine of swaps; effects, routes, sets of heads, cross-attention
* study: one word measured, a study of several, evaluation; the border to pandas
* charts: frames in, pictures out
* sweep: the same measurements over a corpus of any size, in shards
* pages: report, walk, sweep: one HTML file and a folder that is whole or absent
* explore: the walk live, on one's own sentences: one page, from a local server or in a notebook
* cli: parse, call one library function, write
"""

import sys
from types import ModuleType

import lazy_loader

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


class _Package(ModuleType):
    """Keeps `probe.study` a function when the room of that name is imported: the import system would put the room in
    its place.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def _version() -> str:
    """The version in the metadata of the distribution; "not installed" where only its sources are there."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("probe-heads")
    except PackageNotFoundError:
        return "not installed"


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name not in __all__:
        raise AttributeError(f"module 'probe' has no attribute {name!r}; its public names are {', '.join(__all__)}")
    return _public(name)
