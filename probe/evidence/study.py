"""The study of ambiguous words: a model and sentences in, frames of numbers with their evidence
out; and its cost, said before the work.

It chooses the words, certifies the model before anything else, measures word by word
(`probe.evidence.word`) and collects one tidy frame per question (`probe.evidence.tables`,
`probe.evidence.examples`, `probe.evidence.circuit`). A Study is what the user holds: frames, never
tensors.

Of the cost, forwards and swaps are upper bounds: where the gap between two senses is not there
nothing is swapped, and a read-out below the last block leaves out the heads above it. Memory is
what is held now and what will come on top: every word's states, an untrained model of the same
shape, and the largest single step.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import pandas as pd
import torch

from probe.errors import InputError
from probe.evidence import circuit, examples, head_parts, tables
from probe.evidence.material import Material, choose_words, prepare, sentences_of, unused
from probe.evidence.tables import FEW, FEW_CUES
from probe.evidence.word import (
    CURVE_PAIRS,
    JOINT_HEADS,
    JOINT_PAIRS,
    StudyOptions,
    measure_controls,
    observe_word,
    study_word,
)
from probe.model.architectures import FAMILIES, require_single
from probe.model.check import Certificate, certify
from probe.model.load import ModelSource, load, read_weights, untrained
from probe.model.model import Model
from probe.model.records import Shown
from probe.model.trace import target_states
from probe.patching import sets as head_sets
from probe.patching.paths import EDGE
from probe.patching.swaps import NUMBERS, swap_heads
from probe.provenance import Origin
from probe.stats.axes import sense_pairs
from probe.stats.numbers import counted
from probe.stats.resampling import smallest_p
from probe.stats.verdicts import LEVEL
from probe.text import lexicon
from probe.text.sentences import as_corpus
from probe.text.splits import CrossFit, cross_fit

FEWEST = 99  # permutations
Progress = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class Study(Shown):
    """Frames of one study, one per question, with what made them; `probe.evidence.columns`
    describes every column."""

    model_name: str
    origin: Origin
    options: dict[str, object]
    certificate: Certificate
    frames: dict[str, pd.DataFrame]
    data_sha256: str

    def __getattr__(self, name: str) -> pd.DataFrame:
        try:
            return self.__dict__["frames"][name]
        except KeyError:
            raise AttributeError(
                f"a study has no {name!r}; its frames are {', '.join(self.__dict__.get('frames', {}))}"
            ) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.frames]

    def __repr__(self) -> str:
        words = ", ".join(map(str, self.options["words"]))  # type: ignore[call-overload]
        return f"<Study of {words} in {self.model_name}: {len(self.frames)} frames>"


def study(
    model: ModelSource,
    words: Sequence[str] | str | None = None,
    *,
    corpus: Any = None,
    seed: int = StudyOptions.seed,
    permutations: int = StudyOptions.permutations,
    max_pairs: int = StudyOptions.max_pairs,
    second: ModelSource | None = None,
    progress: Progress | None = None,
    planned: Callable[["StudyCost"], None] | None = None,
) -> Study:
    """Effects of swapping every head at each word, with tests, on the lexicon's sentences or on a
    corpus of your own.

    `words` defaults to bank, mole and apple, or to every word of `corpus`: what `read_sentences`
    gives or takes (a path, a DataFrame, a list of dicts or of sentences); rows that name no word
    are about the one that is studied. Raises InputError for an unknown word, too few sentences,
    senses or permutations, UnsupportedModel for an encoder-decoder, and CrossCheckError when the
    certificate fails: no number is reported from a model that disagrees. `second` is a model that
    reads both ways, for the lesson's sentences whose cue comes after the word. What it says is the
    frame `beside` (and its option `--beside`), for it stands beside what the studied model says.
    `planned` is told the cost before the work, and may raise.
    """
    model = load(model)
    second = load(second) if second else None
    report = progress or (lambda stage, share: None)
    if second:
        _require_reads_both_ways(second)
    if permutations < FEWEST:
        raise InputError(
            f"Studying words: got permutations = {permutations}, expected at least {FEWEST}, so that a p of .01 can be "
            f"reached; leave it away for 1,000."
        )
    require_single(model.config.architecture, "a study")
    corpus = None if corpus is None else as_corpus(corpus, words)
    chosen = choose_words(words, corpus)
    given = [sentences_of(word, corpus, model) for word in chosen]
    materials = [
        prepare(model, sentences, word) for word, sentences in zip(chosen, given, strict=True)
    ]
    options = StudyOptions(seed, max_pairs, permutations)
    late = _late(second, materials) if second else []
    if planned:
        planned(cost_of(model, materials, options, second, late))
    report("certificate", 0.05)
    certificate = certify(model, [material.sentences[0].text for material in materials]).require()
    results = []
    for index, material in enumerate(materials):
        report(material.word, 0.1 + 0.7 * index / len(materials))
        results.append(study_word(model, material, options))
    report("controls", 0.8)
    chance = untrained(model, seed=seed)
    measured = [measure_controls(model, chance, result, options) for result in results]
    report("examples", 0.85)
    frames = tables.frames(model, results, certificate, measured, corpus.left_out if corpus else ())
    frames |= examples.frames(model, results, frames["word_heads"], seed=seed)
    report("paths", 0.9)
    frames |= circuit.frames(model, results, frames["word_heads"], options)
    frames["beside"] = _read_second_model(second, late, options)
    made: dict[str, object] = {"words": list(chosen)} | asdict(options)
    made["sentences"] = " and ".join(dict.fromkeys(sentences.source for sentences in given))
    made |= {"beside": second.name} if second else {}
    sums = list(
        dict.fromkeys(one.sha256 for one in given)
    )  # that of the one source, or of the sums of several
    sha256 = sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()
    return Study(model.name, model.origin, made, certificate, frames, sha256)


def _require_reads_both_ways(second: Model) -> None:
    """Raises InputError unless the second model has one stack and reads beyond a word."""
    require_single(second.config.architecture, "a study")
    if second.config.causal:
        raise InputError(
            "Reading the sentences whose cue comes after the word beside the study: "
            f"{second.name} reads left to right only, expected a model that reads both ways; "
            "give tiny-senses-bidirectional or another BERT or RoBERTa."
        )


def _late(second: Model, studied: Sequence[Material]) -> list[Material]:
    """The lexicon's sentences, for the second model, of each word that stands before its cue in the
    lesson."""
    senses = {material.word: set(material.labels) for material in studied}
    late = [
        item.word
        for item in lexicon.showcase()
        if item.cue_after and item.sense in senses.get(item.word, ())
    ]
    return [prepare(second, sentences_of(word, None, second), word) for word in dict.fromkeys(late)]


def _read_second_model(
    second: Model | None, late: Sequence[Material], options: StudyOptions
) -> pd.DataFrame:
    """The sentences with a late cue in the second model, which is certified first."""
    if second is None or not late:
        return pd.DataFrame(columns=examples.SECOND_MODEL)
    certify(second, [material.sentences[0].text for material in late]).require()
    return examples.second_model(
        second, [observe_word(second, material, options) for material in late]
    )


UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
FRAMES = 150 * 10**6  # tables, permutations and the page
READ, SWAPPED = 16, 512  # sentences read and swaps run to see how long a study will take
LIVE = 4  # tensors as wide as the MLP's activations that are held at once
STATUS, SYSTEM = Path("/proc/self/status"), Path("/proc/meminfo")


@dataclass(frozen=True)
class StudyCost:
    """The most a study of these words takes; `held` and `extra` in bytes, `held` 0 where the system
    does not tell.

    `seconds`: processor time as a study usually goes, from a measured batch of forwards and of
    swaps · `enough`: what the sentences of each pair of senses are enough for.
    """

    words: tuple[str, ...]
    forwards: int
    swaps: int
    held: int
    extra: int
    seconds: float | None = None
    enough: tuple[str, ...] = ()

    def __str__(self) -> str:
        minutes = (
            ""
            if self.seconds is None
            else f"about {max(1, round(self.seconds / 60))} min on this machine, "
        )
        return (
            f"{', '.join(self.words)}: at most {self.forwards:,} forward passes and {self.swaps:,} swaps, "
            f"{minutes}about {_amount(self.held + self.extra)} of memory."
        )

    def require(self, limit: int | None = None) -> "StudyCost":
        """Itself; raises InputError when it needs more memory than is free, or more in all than
        `limit` bytes."""
        free = available()
        if limit is not None and self.held + self.extra > limit:
            needs, there = (
                self.held + self.extra,
                f"--max-memory allows {_amount(limit)}; allow more",
            )
        elif free is not None and self.extra > free:
            needs, there = self.extra, f"{_amount(free)} are free; close other programs"
        else:
            return self
        raise InputError(
            f"Planning the study of {', '.join(self.words)}: it would take about {_amount(needs)} of memory and "
            f"{there}, or take fewer words, fewer sentences or a smaller model."
        )


def cost_of(
    model: Model,
    materials: Sequence[Material],
    options: StudyOptions,
    second: Model | None,
    late: Sequence[Material],
) -> StudyCost:
    """The cost of a study of these words; deals out their sentences as the study will, and runs a
    few for the time.

    `late`: the sentences of each word that the axes of the `second` model are fitted on.
    """
    c, size = model.config, _bytes_per_number(model)
    heads = c.n_layers * c.n_heads
    parted = {
        one.word: {
            pair: cross_fit(one.sentences, pair, seed=options.seed)
            for pair in sense_pairs(one.labels)
        }
        for one in materials
    }
    used = [len(material) for material in materials]
    held_by_second = (
        max((_state(second, [one]) * len(one) for one in late), default=0) if second else 0
    )
    weights = sum(tensor.numel() * size for tensor in model.weights.values())
    at_random = (
        weights + 3 * size * c.n_layers * c.d_model**2
    )  # its bridge holds queries, keys and values apart
    certificate = 2 * 8 * model.weights[FAMILIES[c.architecture].embed + ".weight"].numel()
    forwards = 3 * sum(used) + 3 * len(materials) + sum(map(len, late))
    swaps = sum(_swaps(splits.values(), heads, options) for splits in parted.values())
    usual = swaps + sum(_usual_ways(model, material) for material in materials)
    edges = [_edges(model, material) for material in materials]
    swaps += sum(circuit.most_runs(c.n_layers, c.n_heads, *counts) for counts in edges if counts[1])
    return StudyCost(
        words=tuple(parted),
        forwards=forwards,
        swaps=swaps,
        held=resident() or 0,
        extra=_state(model, materials) * (sum(used) + max(used))
        + max(certificate, at_random, held_by_second)
        + size * LIVE * NUMBERS
        + max(count for _, count in edges) * (EDGE.itemsize + 8 * size * circuit.PAIRS)
        + FRAMES,
        seconds=_seconds(model, max(materials, key=len), forwards, usual),
        enough=tuple(
            _enough(word, pair, split, options.permutations)
            for word, splits in parted.items()
            for pair, split in splits.items()
        )
        + tuple(
            f"{one.word}: no cue is marked, so every sentence, or pair of them, counts as a cue word of its own."
            for one in materials
            if not any(sentence.cue_word for sentence in one.sentences)
        )
        + tuple(
            f"{one.word}: {counted(number, 'sentence')} left out: {reason}."
            for one in materials
            for reason, number in Counter(
                item.reason for item in unused(one, parted[one.word].values())
            ).items()
        ),
    )


def _state(model: Model, materials: Sequence[Material]) -> int:
    """Bytes of what is kept of one sentence, of a word read in a text as long as the longest."""
    c, width = model.config, max(max(map(len, material.tokens)) for material in materials)
    return _bytes_per_number(model) * (
        c.n_layers * (6 * c.d_model + c.n_heads * width) + 3 * c.d_model
    )


def _bytes_per_number(model: Model) -> int:
    return next(iter(model.weights.values())).element_size()


def _apart(material: Material) -> list[int]:
    """Tokens from the beginning of the cue to the word, of the sentences whose cue stands before
    it."""
    return [
        at - cue[0]
        for at, cue in zip(material.targets, material.cues, strict=True)
        if cue and cue[0] < at
    ]


def _edges(model: Model, material: Material) -> tuple[int, int]:
    """The most positions from the cue to the word, and how many edges lie between; none in an
    encoder."""
    positions, c = 1 + max(_apart(material), default=max(material.targets)), model.config
    edges = circuit.count_edges(c.n_layers, c.n_heads, positions) if c.causal else 0
    return positions, min(edges, circuit.MOST_EDGES)


def _usual_ways(model: Model, material: Material) -> int:
    """Partial forwards of a word's traces when it is read halfway up and its cue is as far away as
    in the mean.

    Without the totals of edges: how many could reach enough is seen in the traces only, and seldom
    many.
    """
    c = model.config
    positions = 1 + round(float(np.mean(_apart(material) or material.targets)))
    return circuit.most_runs(max(1, c.n_layers // 2), c.n_heads, positions, 0) if c.causal else 0


def _seconds(model: Model, material: Material, forwards: int, swaps: int) -> float:
    """How long so many forwards and swaps take, from a few of each, in batches as a study runs
    them.

    A sentence that is read alone takes several times as long as one of a batch. Processor seconds
    of one thread, shared out to all that torch uses: by the clock, and with several threads, a busy
    machine would make it far too long.
    """
    heads = model.config.n_layers * model.config.n_heads
    order = sorted(range(len(material)), key=material.targets.__getitem__)
    rows = [order[place * len(order) // READ] for place in range(READ)]
    weights, zero = read_weights(model), torch.zeros(1, model.config.d_model)
    tokens, targets = (
        [material.tokens[row] for row in rows],
        [material.targets[row] for row in rows],
    )
    few = min(READ, max(1, SWAPPED // heads))
    middle = slice((READ - few) // 2, (READ + few) // 2)
    texts = [material.placed[row] for row in rows[middle]]
    read, swapped, threads = [], [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(2):  # the first run also loads and allocates
            started = thread_time()
            states = target_states(model, tokens, targets)
            read.append((thread_time() - started) / len(rows))
            started = thread_time()
            swap_heads(weights, texts, states.z[middle], zero)
            swapped.append((thread_time() - started) / (len(texts) * heads))
    finally:
        torch.set_num_threads(threads)
    return (forwards * min(read) + swaps * min(swapped)) / threads


def _enough(word: str, pair: tuple[str, str], split: CrossFit, permutations: int) -> str:
    """What the sentences of two senses are enough for: the pairs of cue words, and the smallest p
    they can give."""
    units, per_sense = len(set(split.units)), [sum(split.is_a), len(split.rows) - sum(split.is_a)]
    least, more = (
        smallest_p(units, draws=permutations),
        [f"{FEW} sentences per sense"] * (min(per_sense) < FEW),
    )
    more += [f"{FEW_CUES} different cue words"] * (units < FEW_CUES)
    if least >= LEVEL:
        what = f"no test can come below p = {least:.2g}: give more different cue words"
    elif more:
        what = f"exploratory; for a firmer answer give {' with '.join(more)}"
    else:
        what = "enough for tests corrected for every head"
    return (
        f"{word}, {pair[0]} / {pair[1]}: {per_sense[0]} and {per_sense[1]} sentences in {len(split.pairs)} pairs with "
        f"{units} pairs of cue words; {what}."
    )


def _swaps(parted: Iterable[CrossFit], heads: int, options: StudyOptions) -> int:
    """Swapped runs of one word: four donors a pair of sentences, five routes, stand-ins, sets of
    the curve."""
    swaps = 0
    for split in parted:
        pairs = min(options.max_pairs, len(split.pairs))
        routed, joint = min(pairs, head_parts.MOST_PAIRS), min(pairs, JOINT_PAIRS)
        swaps += heads * (4 * pairs + 2 * JOINT_HEADS * joint)
        swaps += min(heads, head_parts.MOST_HEADS) * 2 * len(head_parts.KINDS) * routed
    sets = 2 * len(head_sets.curve_sizes(heads)) + head_sets.SIZES * head_sets.RANDOM_SETS
    return swaps + 2 * CURVE_PAIRS * sets


def parse_memory(text: str) -> int:
    """Bytes from "4GB", "500 MB" or a plain number of bytes; raises InputError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text, re.IGNORECASE)
    if not match or float(match[1]) == 0:
        raise InputError(
            f"Reading --max-memory: got {text!r}, expected an amount of memory; give one such as 4GB or 500MB."
        )
    return int(float(match[1]) * UNITS[match[2].lower()])


def resident() -> int | None:
    """Bytes that this process holds, None where the system does not tell."""
    return _kilobytes(STATUS, "VmRSS")


def available() -> int | None:
    """Bytes that can be had without swapping, None where the system does not tell."""
    return _kilobytes(SYSTEM, "MemAvailable")


def _kilobytes(table: Path, name: str) -> int | None:
    """An amount in kB from one of Linux's tables, in bytes."""
    if not os.access(table, os.R_OK):
        return None
    match = re.search(rf"^{name}:\s+(\d+) kB$", table.read_text(encoding="ascii"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _amount(amount: int) -> str:
    return f"{amount / 1e9:.1f} GB" if amount >= 10**8 else f"{amount / 1e6:.0f} MB"
