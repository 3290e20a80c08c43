"""Which heads of a transformer resolve an ambiguous word, by looking at which cue, and how do we know?

The public names stand in pipeline order. Each is imported when it is first asked for, so that `import probe` loads
neither torch nor pandas. The rooms, in the order in which data pass through them:

    sentences, sentence_files, lexicon (+ lexicon/)    what is read: a user's sentences, the words that ship
    models (+ loading/, embedded/)                     what is loaded, and what must be true of it
    families/                                          the architectures beside GPT-2: their table, hooks, formulas, rows; swaps in them
    tokens, trace, records, lens                       text to tokens, hooks to tensors, vectors to the tokens they read as
    handover                                           a trace as other packages draw it
    attention, replay, check                           the formulas, a forward from raw weights, the certificate
    material, splits                                   the sentences of one word made ready, and dealt out to fit, select, report
    senses, ledger, separation                         observation: sense axes, the residual stream as a sum, held-out AUROC
    engine, patching, effects, routes, head_sets       intervention: a fast forward, exact swaps, what they amount to, how, and together
    statistics, inference, verdicts, controls          how sure: intervals, corrected tests, what a head was shown to be
    experiment, study, examples, lessons, suppliers    one word measured; the front door; single sentences to look at
    columns, tidy, tables, head_tables                 the border to pandas
    charts/, pages/, report/, numerals                 pictures, what pages share, the report
    cli, terminal                                      the command line, what it prints
    speed/                                             what times and memory are measured with
    evaluation/                                        sense accuracy per layer, beside baselines
    sweep/                                             the same measurements over a corpus of any size, in shards
    walk/                                              one sentence, every step of one head; two texts, what one reads of the other
    parameters                                         how many numbers a model has, and where
    errors, provenance                                 what a user is told; what made a result
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe.errors import CrossCheckError, InputError, ModelError, ProbeError, UnsupportedModel
    from probe.model.check import certify
    from probe.model.lens import logit_lens, nearest_tokens, residual_stream
    from probe.model.load import available, load
    from probe.model.model import Model
    from probe.model.parameters import count_parameters
    from probe.model.records import CrossTrace, PairTrace, TargetStates, TargetTrace, Trace
    from probe.model.tokens import positions_of_word, tokenize
    from probe.model.trace import target_states, trace, trace_target
    from probe.model.weights import read_weights
    from probe.pages.report import write_report
    from probe.pages.walk.page import write_walk
    from probe.pages.walk.walk import Walk, walk
    from probe.patching.cross import CrossSwaps, WordChoice, cross_logits, swap_cross_heads, swap_source_words
    from probe.patching.swaps import swap_heads, swap_pairs, swap_sets
    from probe.stats.permutation import sign_flip_test
    from probe.study.evaluation import Evaluation, evaluate, write_evaluation
    from probe.study.study import Study, study
    from probe.text.lexicon import entry, expand, read_sentences, showcase, words

__version__ = "0.1.0"

_HOME = {
    "load": "model.load",
    "available": "model.load",
    "Model": "model.model",
    "tokenize": "model.tokens",
    "positions_of_word": "model.tokens",
    "trace": "model.trace",
    "Trace": "model.records",
    "PairTrace": "model.records",
    "CrossTrace": "model.records",
    "target_states": "model.trace",
    "TargetStates": "model.records",
    "trace_target": "model.trace",
    "TargetTrace": "model.records",
    "residual_stream": "model.lens",
    "logit_lens": "model.lens",
    "nearest_tokens": "model.lens",
    "certify": "model.check",
    "words": "text.lexicon",
    "entry": "text.lexicon",
    "expand": "text.lexicon",
    "showcase": "text.lexicon",
    "read_sentences": "text.lexicon",
    "read_weights": "model.weights",
    "swap_heads": "patching.swaps",
    "swap_pairs": "patching.swaps",
    "swap_sets": "patching.swaps",
    "WordChoice": "patching.cross",
    "swap_cross_heads": "patching.cross",
    "swap_source_words": "patching.cross",
    "CrossSwaps": "patching.cross",
    "cross_logits": "patching.cross",
    "sign_flip_test": "stats.permutation",
    "study": "study.study",
    "Study": "study.study",
    "write_report": "pages.report",
    "evaluate": "study.evaluation",
    "Evaluation": "study.evaluation",
    "write_evaluation": "study.evaluation",
    "walk": "pages.walk.walk",
    "Walk": "pages.walk.walk",
    "write_walk": "pages.walk.page",
    "count_parameters": "model.parameters",
    "ProbeError": "errors",
    "InputError": "errors",
    "ModelError": "errors",
    "UnsupportedModel": "errors",
    "CrossCheckError": "errors",
}

__all__ = [
    "load",
    "available",
    "Model",
    "tokenize",
    "positions_of_word",
    "trace",
    "Trace",
    "PairTrace",
    "CrossTrace",
    "target_states",
    "TargetStates",
    "trace_target",
    "TargetTrace",
    "residual_stream",
    "logit_lens",
    "nearest_tokens",
    "certify",
    "words",
    "entry",
    "expand",
    "showcase",
    "read_sentences",
    "read_weights",
    "swap_heads",
    "swap_pairs",
    "swap_sets",
    "WordChoice",
    "swap_cross_heads",
    "swap_source_words",
    "CrossSwaps",
    "cross_logits",
    "sign_flip_test",
    "study",
    "Study",
    "write_report",
    "evaluate",
    "Evaluation",
    "write_evaluation",
    "walk",
    "Walk",
    "write_walk",
    "count_parameters",
    "ProbeError",
    "InputError",
    "ModelError",
    "UnsupportedModel",
    "CrossCheckError",
]


class _Package(ModuleType):
    """Keeps `probe.trace`, `probe.study`, `probe.walk` and `probe.evaluate` functions, also after modules of these names were imported.

    The import system would overwrite them with the submodules; `from probe.model.trace import ...` does not need that.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'probe' has no attribute {name!r}; its public names are {', '.join(__all__)}")
    return getattr(import_module(f"probe.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
