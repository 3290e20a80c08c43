"""Which heads of a transformer resolve an ambiguous word, by looking at which cue, and how do we
know?

The public names are listed in `__init__.pyi`, in pipeline order. Each is imported when it is first
asked for, so that `import probe` loads neither torch nor pandas. The packages follow in the order
in which data pass through them. A module imports only from its own package and the ones above it.

* errors, progress, provenance, display: messages to the user; the origin of a result; its view in a
  notebook
* text: sentences and their files, the lexicon, splits
* stats: axes, resampling, permutation tests, verdicts, and how numbers are written
* model: the table of architectures, loading, hooks, traces, the forward from scratch and the fused
  one, the certificate, the decomposition of the stream
* patching: swaps of heads, sets, positions, edges, cross-attention: tensors in, tensors out
* experiments: what is measured on a word, as arrays
* inference: what follows from it
* results: the border to pandas: frames, columns, what a page may claim
* charts: frames in, pictures out
* studies: a study of words, a survey of words in general
* walkthrough: the steps of attention on one text or two
* pages: report, walk, survey: one HTML file and a folder that is whole or absent
* explorer: the walk, live, on the user's sentences: one page, from a local server or in a notebook
* cli: parse, call one library function, write
"""

import lazy_loader

from probe import display

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _version() -> str:
    """The version in the metadata of the distribution; "not installed" where only its sources are
    there."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("probe-heads")
    except PackageNotFoundError:
        return "not installed"


def _register_formatters() -> None:
    """Loads the pages, which register how a result is drawn; a notebook calls it when it first
    shows one."""
    from probe.pages import report  # noqa: F401 (registers on import)


display.register_formatters = _register_formatters


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name not in __all__:
        raise AttributeError(
            f"module 'probe' has no attribute {name!r}; its public names are {', '.join(__all__)}"
        )
    return _public(name)
