"""The cue scan: every word of the vocabulary as the cue of an ambiguous word.

The axis is fitted on sentences or on two texts, the heads that matter are found on a sample of
texts, and every cue is read in every frame (`probe.experiments.cues`).

    share   1 - Var(M with the head's output at the word fixed at its mean) / Var(M), with variances
            over cues, and means and variances within a frame: 1 if the whole effect of cues on the
            word passes through the head's output there, 0 if none of it does
    auroc   of held-out cue words, each read along an axis that was fitted without it
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.display import Displayed
from probe.errors import InputError, require_at_least
from probe.experiments.candidates import candidates, rows_for, with_tokens
from probe.experiments.cues import (
    CHUNK,
    DOING,
    AtWord,
    CueTexts,
    Ids,
    Report,
    ScanAxes,
    Slots,
    Template,
    ask,
    axes_of_sentences,
    in_every_frame,
    occur_in,
    read_texts,
    scan,
    scan_axes,
    split_half,
    texts_of,
    without_beginnings,
    without_cue,
)
from probe.experiments.material import choose_words, prepare, sentences_of
from probe.experiments.observe import Observation, SenseAxes, observe
from probe.model.architectures import require_single
from probe.model.check import Certificate, certify
from probe.model.load import ModelSource, load
from probe.model.model import Model
from probe.model.tokens import Tokens, ids_after, tokenize
from probe.model.trace import target_states
from probe.model.variants import TargetText
from probe.model.weights import Weights, weights_of
from probe.patching.heads import swap_heads
from probe.patching.sets import HeadIndex
from probe.patching.tokens import replace_tokens
from probe.progress import Progress, silent
from probe.provenance import Origin, content_key, sha256_of_bytes
from probe.results.tables import Tables
from probe.stats import axes as sense_axes
from probe.stats import resampling
from probe.stats.axes import Axis, HeldOutAxes, hold_out
from probe.stats.limits import SMALLEST
from probe.stats.resampling import Array
from probe.text import lexicon
from probe.text.sentences import as_corpus
from probe.text.slots import stem_of
from probe.text.splits import CrossFit, restrict
from probe.tidy import rounded

TOP = 4  # heads whose attention, score and write are stored for every cue
NOUNS = 10  # unambiguous nouns that replace the word
SAMPLE = 2000  # texts that the shares of heads are measured on
SWAP_CHUNK = 256  # texts whose swaps are run together
DEPTH_SAMPLE = 256  # cues that the read-out layer is chosen on, without labelled sentences
TABLE_ROWS = 2**13  # token embeddings that are converted to float64 at once
LEAST_VARIANCE = 1e-6  # of the largest: directions of the embeddings that vary less are left out
ROUNDING = 1e-5  # of the length of a vector: two that differ by less are the same
HEADS_SHOWN = 3  # names in the repr of a scan
TIMED_TEXTS = 64  # texts, and texts with swaps, from whose time the time of a scan is expected
TIMED_SWAPS = 8
TWO_TEXTS = "two texts"
VOCABULARY = "every word of the vocabulary"
GIVE_TEXTS = (
    "give two texts with the word (texts=, on the command line --texts) or sentences (sentences=, "
    "--sentences)"
)
Cue = tuple[str, Ids]  # a word, and the ids of its tokens in the slot of a frame
AUROC = ("auroc", "auroc_low", "auroc_high")
BASELINES = (
    *("auroc_nouns", "auroc_nouns_min", "auroc_nouns_max"),
    *("auroc_embedding", "auroc_whitened"),
)


@dataclass(frozen=True, eq=False)
class Cues(Tables, Displayed):
    """A cue scan of one word as frames (`probe.results.columns` describes every column)."""

    model_name: str
    origin: Origin
    options: dict[str, object]  # word, cues, frames, seed, how the axis was fitted
    certificate: Certificate  # the hooked model compared with the raw weights
    # `cues`: a row for each cue and top head. `cues_heads`: a row for each head up to the read-out
    # layer. `cues_nouns`: a row for each head and unambiguous noun. `cues_summary`: one row.
    frames: dict[str, pd.DataFrame]
    data_sha256: str

    @property
    def cues(self) -> pd.DataFrame:
        """A row for each cue and top head."""
        return self.frames["cues"]

    @property
    def heads(self) -> pd.DataFrame:
        """A row for each head up to the read-out layer, the largest share first."""
        return self.frames["cues_heads"]

    @property
    def summary(self) -> dict[str, Any]:
        """The numbers of the scan as a whole."""
        [row] = self.frames["cues_summary"].to_dict("records")
        return {str(name): value for name, value in row.items()}

    @property
    def senses(self) -> tuple[str, str]:
        """The two senses, the first with positive coordinates."""
        return self.summary["sense_a"], self.summary["sense_b"]

    def __repr__(self) -> str:
        row = self.summary
        top = self.heads.head(HEADS_SHOWN)
        names = ", ".join(f"L{head.layer}H{head.head}" for head in top.itertuples())
        return (
            f"<Cues of {row['word']} in {self.model_name}: {row['cues']} cues, "
            f"{row['sense_a']} against {row['sense_b']}; largest shares: {names}>"
        )


def cues(
    model: ModelSource,
    word: str,
    *,
    sentences: Any = None,
    texts: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    cues: Sequence[str] | str | Path | None = None,
    frames: Sequence[str] | str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Cues:
    """Return what every word of the model's vocabulary does as the cue of an ambiguous word: how
    far it moves the word along the sense axis, and the heads that move it.

    sentences: labelled sentences that the axis is fitted on, as `study` takes them; by default the
        sentences that ship. Of several senses, the two that are furthest apart are compared
    texts: two texts with the word, one for each meaning; the axis then runs through their two
        vectors of the word
    names: of the two meanings of the texts; by default the texts themselves, in quotation marks
    cues: words to try, or a file with one in each line. By default every word that is one token of
        the model, except tokens that the model expects to continue as a longer word
    frames: short texts with the word and one slot `_` for the cue, or a file with one in each line.
        By default four with the cue 1 to 4 words before the word, and in a model that reads both
        ways two with the cue after it
    seed: of the sample of cues and of every random draw
    progress: called with a stage's name and the share of the work that is done

    The coordinate of the word without a cue, in the same texts, is `summary["without_cue"]`.

    The four heads with the largest share of the variance over cues are read for every cue. Words
    that occur in the fitted sentences, in any form, are marked `seen`.

    The summary has the AUROC of held-out cue words. It is no evidence of ambiguity, so two
    baselines are listed next to it: the same words before unambiguous nouns, and their token
    embeddings.

    Raises InputError for a word without sentences, texts or frames without the word, and too few
    cues; UnsupportedModel for an encoder-decoder; CrossCheckError if the
    certificate fails.

    Example:
        >>> scan = probe.cues("tiny-senses", "bank", texts=("The river bank", "The loan bank"))
        >>> list(scan.frames)
        ['cues', 'cues_heads', 'cues_nouns', 'cues_summary']
        >>> scan.heads.columns[:3].tolist()
        ['layer', 'head', 'share']
    """
    inputs = scan_inputs(
        model,
        word,
        sentences=sentences,
        texts=texts,
        names=names,
        cues=cues,
        frames=frames,
        seed=seed,
        progress=progress,
    )
    return scan_cues(inputs, progress)


@dataclass(frozen=True, eq=False)
class ScanInputs:
    """What a scan reads and measures, after all checks and before the work.

    fitted: the axis of sentences; None for two texts, of which the cues choose the layer
    names: of the two texts
    vocabulary: whether the cues are every word of the vocabulary
    """

    model: Model
    word: str
    slots: Slots
    fitted: "Fitted | None"
    texts: Sequence[str] | None
    names: Sequence[str] | None
    vocabulary: bool
    seed: int

    def fit(self, slots: Slots) -> "Fitted":
        """The axis; that of two texts at the layer that these cues choose."""
        if self.texts is None:
            assert self.fitted is not None
            return self.fitted
        return fit_texts(self.model, self.word, self.texts, slots, seed=self.seed, names=self.names)


def scan_inputs(
    model: ModelSource,
    word: str,
    *,
    sentences: Any = None,
    texts: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    cues: Sequence[str] | str | Path | None = None,
    frames: Sequence[str] | str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> ScanInputs:
    """What a scan reads. The arguments and the errors are those of `cues`."""
    require_at_least(0, seed, "seed", doing=DOING, usual=0)
    if sentences is not None and texts is not None:
        raise InputError(f"{DOING}: got both sentences and texts. Give one of the two.")
    if names is not None and texts is None:
        raise InputError(
            f"{DOING}: got names and no texts. Give the two texts that they name (texts=, on the "
            "command line --texts)."
        )
    model = load(model)
    require_single(model.config.architecture, "a cue scan")
    slots = ask(
        model,
        word,
        cues=None if cues is None else _lines(cues),
        frames=None if frames is None else _lines(frames),
    )
    # Sentences and texts that cannot be used are refused first, within seconds.
    (progress or silent)("axis", 0.01)
    fitted = None
    if texts is None:
        fitted = _fit_sentences(model, word, sentences, slots, seed=seed)
    else:
        _read_texts(model, word, texts)
        _names_of(texts, names)
    return ScanInputs(model, word, slots, fitted, texts, names, cues is None, seed)


def expected_seconds(inputs: ScanInputs) -> float:
    """About how many seconds a scan takes, from the time of a few of its texts and swaps."""
    model, slots = inputs.model, inputs.slots
    weights = weights_of(model)
    axes = inputs.fit(slots).axes
    sample = draw_sample(slots, seed=inputs.seed)
    texts = sample.rows.texts

    def read(rows: Sequence[TargetText], depth: int) -> object:
        return replace_tokens(weights, rows, [slots.word], parts=(), depth=depth)

    donor_z = torch.zeros(
        (TIMED_SWAPS, axes.depth, *weights.shape[1:4:2]),
        dtype=weights.dtype,
        device=weights.device,
    )
    direction = axes.u[:, -1].to(donor_z)

    def swap(rows: Sequence[TargetText]) -> object:
        return swap_heads(weights, rows, donor_z[: len(rows)], direction)

    of_text = _seconds_each(texts[:TIMED_TEXTS], partial(read, depth=axes.depth))
    of_whole_text = _seconds_each(texts[:TIMED_TEXTS], partial(read, depth=len(weights.blocks)))
    of_swaps = _seconds_each(texts[:TIMED_SWAPS], swap)
    nouns = _nouns(model, slots.before, inputs.word, slots.word)
    runs = len(slots.cues) * len(slots.frames) + len(texts) * (1 + len(nouns))
    whole_runs = len(slots.cues) if inputs.vocabulary else 0
    return runs * of_text + whole_runs * of_whole_text + len(texts) * of_swaps


def _seconds_each(
    texts: Sequence[TargetText], run: Callable[[Sequence[TargetText]], object]
) -> float:
    """The seconds that each text takes; the first run is not timed, because it loads code."""
    run(texts[:1])
    started = monotonic()
    run(texts)
    return (monotonic() - started) / len(texts)


def scan_cues(inputs: ScanInputs, progress: Progress | None = None) -> Cues:
    """The scan. Raises InputError for too few cues, CrossCheckError if the certificate fails."""
    model, slots, seed = inputs.model, inputs.slots, inputs.seed
    report = progress or silent
    # The certificate comes first: a scan takes minutes, and its numbers would be refused at the
    # end.
    report("certificate", 0.02)
    certificate = certify(model, [slots.frames[0].filled(slots.words[0])[0]]).require()
    # A user's cues are taken as they are; of the vocabulary only whole words are cues.
    if inputs.vocabulary:
        slots = without_beginnings(
            model, slots, report=lambda share: report("which tokens are words", 0.04 + 0.2 * share)
        )
    report("axis", 0.24)
    fitted = inputs.fit(slots)
    by_name = _measure(model, inputs.word, slots, fitted, report, seed=seed)
    options: dict[str, object] = {
        "word": inputs.word,
        "sentences": fitted.source,
        "texts": None if inputs.texts is None else list(inputs.texts),
        "names": None if inputs.names is None else list(inputs.names),
        "frames": [frame.text for frame in slots.frames],
        "cues": VOCABULARY if inputs.vocabulary else content_key(*slots.words),
        "left_out": list(slots.not_held),
        "seed": seed,
    }
    return Cues(model.name, model.origin, options, certificate, by_name, fitted.sha256)


def _measure(
    model: Model, word: str, slots: Slots, fitted: "Fitted", report: Progress, *, seed: int
) -> dict[str, pd.DataFrame]:
    """The frames of a scan by name: the shares of all heads, then every cue with the heads of the
    largest shares.
    """
    weights = weights_of(model)
    axes = fitted.axes
    sample = draw_sample(slots, seed=seed)
    nouns = _nouns(model, slots.before, word, slots.word)
    heads, at_nouns = measure_shares(
        weights,
        sample,
        axes,
        slots.word,
        nouns,
        seed=seed,
        report=lambda share: report("shares of heads", 0.26 + 0.2 * share),
    )
    top = top_heads(heads)
    read = scan(
        weights,
        slots.templates,
        slots.ids,
        axes,
        top,
        report=lambda share: report("cues", 0.46 + 0.5 * share),
    )
    # Of the coordinate, then of the write of each head.
    auroc = dict.fromkeys(AUROC, np.full(1 + len(top), np.nan))
    baselines = dict.fromkeys(BASELINES, np.nan)
    held_out = fitted.held_out
    if held_out is not None:
        auroc = auroc_of(_read_held_out(weights, slots.templates, held_out, top), held_out.is_a)
        baselines = _baselines(weights, slots.templates, fitted)
    first: Any = {name: values[0] for name, values in auroc.items()}
    summary = {
        "word": word,
        "sense_a": axes.senses[0],
        "sense_b": axes.senses[1],
        "depth": axes.depth,
        "without_cue": without_cue(weights, slots.templates, axes),
        "cues": len(slots.cues),
        "beginnings": slots.beginnings,
        "frames": len(slots.frames),
        "reliability": split_half(read.coordinate),
        "texts": len(sample.stems),
        "nouns": len(nouns),
        "held_out": 0 if held_out is None else len(held_out.cues),
        **first,
        **baselines,
    }
    at_top = [
        heads[(heads["layer"] == layer) & (heads["head"] == head)].index[0] for layer, head in top
    ]
    for name, values in auroc.items():
        heads[name] = pd.Series(values[1:], index=at_top, dtype=float).reindex(heads.index)
    heads = heads.sort_values(["share", "layer", "head"], ascending=[False, True, True])
    return {
        "cues": cue_rows(slots.words, occur_in(fitted.texts, slots.words), top, read),
        "cues_heads": rounded(heads.reset_index(drop=True)),
        "cues_nouns": rounded(at_nouns),
        "cues_summary": rounded(pd.DataFrame([summary])),
    }


def top_heads(shares: pd.DataFrame) -> list[HeadIndex]:
    """The heads with the largest shares: at most TOP with at least SMALLEST each, or the first head
    if no share is that large.

    shares: a row for each head
    """
    ordered = shares.iloc[resampling.order(shares["share"].to_numpy())]
    large = ordered[ordered["share"] >= SMALLEST]
    rows = (large if len(large) else ordered[:1])[:TOP]
    return list(zip(rows["layer"].tolist(), rows["head"].tolist(), strict=True))


def cue_rows(
    words: Sequence[str], is_fitted: Sequence[bool], heads: Sequence[HeadIndex], read: AtWord
) -> pd.DataFrame:
    """The frame `cues`: a row for each cue and head, with means over frames.

    words: the cues
    is_fitted: whether each cue occurs in the texts to which the axis was fitted
    heads: that were read

    Numbers are float32, which holds all of their digits, because there can be many rows.
    """
    # A model may have no heads up to its read-out layer.
    rows: Sequence[Any] = heads or [(None, None)]
    count = len(rows)
    frame = pd.DataFrame(
        {
            "cue": np.repeat(np.array(words, dtype=object), count),
            "seen": np.repeat(np.array(is_fitted, dtype=bool), count),
            "frames": read.coordinate.shape[1],
            "coordinate": np.repeat(read.coordinate.mean(1), count),
            "coordinate_sd": np.repeat(read.coordinate.std(1, ddof=1), count),
        }
    )
    for name, numbers in zip(("layer", "head"), zip(*rows, strict=True), strict=True):
        frame[name] = pd.array([*numbers] * len(words), dtype="Int64")
    for name in ("attention", "score", "write"):
        frame[name] = getattr(read, name).mean(1).ravel() if heads else np.nan
    floats = frame.select_dtypes("float").columns
    return rounded(frame).astype(dict.fromkeys(floats, "float32"))


# --- arguments ------------------------------------------------------------------------------------


def _lines(source: Sequence[str] | str | Path) -> list[str]:
    """The different texts of a list, or lines of a file, without empty ones."""
    if isinstance(source, str | Path):
        try:
            source = Path(source).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{DOING}: {source} cannot be read as a text file ({type(error).__name__}). Give a "
                "file in UTF-8 with one entry in each line."
            ) from error
    if not isinstance(source, Collection) or not all(isinstance(line, str) for line in source):
        raise InputError(f"{DOING}: got {source!r}, expected texts. Give a list of texts.")
    return list(dict.fromkeys(line.strip() for line in source if line.strip()))


def _nouns(model: Model, before: str, word: str, ids: Ids) -> dict[str, Ids]:
    """Unambiguous nouns with as many tokens as the word, and their ids after `before`."""
    names = [noun for noun in lexicon.one_meaning_nouns() if noun != word]
    fitting = [
        (noun, noun_ids)
        for noun, noun_ids in zip(names, ids_after(model, before, names), strict=True)
        if noun_ids is not None and len(noun_ids) == len(ids)
    ]
    return dict(fitting[:NOUNS])


# --- the axis -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Cue words of the sentences, each with an axis that was fitted without it.

    cues: the token ids of each cue
    axes: one for each fold
    axis: the number of each cue's axis. `cue`
    is_a: whether it is a cue of the first sense. `cue`
    """

    cues: list[Ids]
    axes: ScanAxes
    axis: list[int]
    is_a: list[bool]


@dataclass(frozen=True, eq=False)
class Fitted:
    """The sense axis, and its origin.

    texts: the texts that it was fitted on
    source, sha256: of the sentences
    held_out: None if no sentences with marked cues were fitted
    at_nouns: the same cue words with the axes of unambiguous nouns in the word's place, by the
        token ids of each noun
    by_embedding: the AUROC of their embeddings, then of their whitened embeddings
    """

    axes: ScanAxes
    texts: list[str]
    source: str
    sha256: str
    held_out: HeldOut | None = None
    at_nouns: Mapping[Ids, HeldOut] = field(default_factory=dict)
    by_embedding: tuple[float, float] = (float("nan"), float("nan"))


def _fit_sentences(model: Model, word: str, sentences: Any, slots: Slots, *, seed: int) -> Fitted:
    """The axis between two senses of labelled sentences, at the read-out layer of a study."""
    user_corpus = None if sentences is None else as_corpus(sentences, word)
    [spelling] = choose_words(word, user_corpus, otherwise=GIVE_TEXTS)
    corpus = sentences_of(spelling, user_corpus, model)
    material = prepare(model, spelling, corpus.sentences)
    observation = observe(model, material, seed=seed, next_token=False)
    pair, axes = axes_of_sentences(observation)
    rows = pair.split.rows
    fitted = Fitted(
        axes, [material.sentences[row].text for row in rows], corpus.source, corpus.sha256
    )
    marked = [row for row in rows if material.sentences[row].cue is not None]
    words = [str(material.sentences[row].cue) for row in marked]
    tokens = ids_after(model, slots.before, words) if words else []
    cues = {
        row: (cue, ids)
        for row, cue, ids in zip(marked, words, tokens, strict=True)
        if ids is not None
    }
    held_out = _held_out(pair.split, pair.axes, cues, observation.depth)
    if held_out is None:
        return fitted
    return replace(
        fitted,
        held_out=held_out,
        at_nouns=_at_nouns(model, observation, pair, cues, slots),
        by_embedding=embedding_aurocs(weights_of(model), pair.split, cues),
    )


def _held_out(
    split: CrossFit, axes: HeldOutAxes, cues: Mapping[int, Cue], depth: int
) -> HeldOut | None:
    """The cue words that an axis was fitted without; None with fewer than two of a sense.

    cues: the cue of each row of the split that has one
    depth: the read-out layer
    """
    # Of a word that occurs several times, the last.
    of_word = {
        cues[row][0]: (cues[row][1], int(cell), bool(is_a))
        for row, cell, is_a in zip(split.rows, split.cells, split.is_a, strict=True)
        if row in cues and cell >= 0
    }
    is_first = [is_a for _, _, is_a in of_word.values()]
    # AUROC compares cues of the two senses, at least two of each.
    if min(is_first.count(True), is_first.count(False)) < 2:
        return None
    ids = [ids for ids, _, _ in of_word.values()]
    cells = [cell for _, cell, _ in of_word.values()]
    upto = slice(depth + 1)
    # u / gap: a coordinate along it is in units of the gap. `cell depth d_model`
    scaled = axes.u[:, upto] / axes.fitted_gap[:, upto, None]
    by_cell = ScanAxes(axes.senses, scaled, axes.midpoint[:, depth])
    return HeldOut(ids, by_cell, cells, is_first)


def _restricted(split: CrossFit, rows: Collection[int]) -> CrossFit:
    """The split of some of its rows, which are then numbered from 0 in the order of the split."""
    positions = [number for number, row in enumerate(split.rows) if row in rows]
    return replace(restrict(split, positions), rows=tuple(range(len(positions))))


def _at_nouns(
    model: Model, observation: Observation, pair: SenseAxes, cues: Mapping[int, Cue], slots: Slots
) -> dict[Ids, HeldOut]:
    """The held-out cue words with the axes of unambiguous nouns, fitted like those of the word: on
    the same sentences with the noun in the word's place. By the noun's token ids.
    """
    material = observation.material
    nouns = _nouns(model, slots.before, material.word, slots.word)
    among = candidates(model, material, [*nouns])
    weights = weights_of(model)
    at_nouns = {}
    for noun, ids in among.nouns.items():
        fitting = set(rows_for(among, noun))
        rows = [row for row in pair.split.rows if row in fitting]
        inside = _restricted(pair.split, fitting)
        if not inside.holdouts:
            continue
        texts = [observation.texts[row] for row in rows]
        states = replace_tokens(weights, texts, [ids], parts=(), depth=observation.depth)
        axes = hold_out(states.resid[:, 0].cpu(), inside, pair.senses)
        own_cues = {number: cues[row] for number, row in enumerate(rows) if row in cues}
        held_out = _held_out(inside, axes, own_cues, observation.depth)
        if held_out is not None:
            at_nouns[ids] = held_out
    return at_nouns


def embedding_aurocs(
    weights: Weights, split: CrossFit, cues: Mapping[int, Cue]
) -> tuple[float, float]:
    """AUROC of the cues' token embeddings, plain and whitened over the vocabulary, along the
    difference of the two senses' means. Held out like the cues of the word.
    """
    inside = _restricted(split, cues)
    embeddings = token_embeddings(weights, [cues[row][1] for row in split.rows if row in cues])
    # One row for each cue word, of those that are held out.
    words = [cues[row][0] for row in split.rows if row in cues]
    row_of = {word: row for row, word in enumerate(words) if inside.cells[row] >= 0}
    rows = list(row_of.values())
    is_a = [inside.is_a[row] for row in rows]
    aurocs = []
    for vectors in (embeddings, embeddings @ whitening(weights)):
        axes = hold_out(vectors[:, None], inside, ("", ""))
        aurocs.append(_auroc(axes.coordinates(vectors[rows, None], rows)[:, 0], is_a).item())
    return aurocs[0], aurocs[1]


def fit_texts(
    model: Model,
    word: str,
    texts: Sequence[str],
    slots: Slots,
    *,
    seed: int,
    names: Sequence[str] | None = None,
    sample_size: int = DEPTH_SAMPLE,
) -> Fitted:
    """The axis through the word in two texts, at the layer where frames agree best about cues.

    names: of the two meanings; by default the texts in quotation marks
    sample_size: how many of the cues are used to choose the layer
    """
    senses = _names_of(texts, names)
    tokens, positions = _read_texts(model, word, texts)
    # One text per sense: at every depth the axis is the difference of two vectors.
    states = target_states(model, tokens, positions)
    by_depth: list[Axis] = [
        sense_axes.fit_axis(states.resid[:1, depth], states.resid[1:, depth], senses, depth)
        for depth in range(states.resid.shape[1])
    ]
    # Runs with several threads may round equal vectors differently.
    apart = (states.resid[0] - states.resid[1]).norm(dim=-1)
    if not (apart > ROUNDING * states.resid.norm(dim=-1).amax(0)).any():
        raise InputError(
            f"{DOING}: {word!r} has the same vector in {texts[0]!r} and {texts[1]!r}. Give texts "
            "that differ before the word."
        )
    # A sample of cues is enough to choose the layer.
    rng = np.random.default_rng(seed)
    sample = [slots.ids[number] for number in rng.permutation(len(slots.cues))[:sample_size]]
    depth = most_reliable_depth(weights_of(model), slots.templates, sample, by_depth, slots.word)
    sha256 = sha256_of_bytes("\n".join(texts).encode())
    return Fitted(scan_axes(by_depth[: depth + 1]), list(texts), TWO_TEXTS, sha256)


def _read_texts(model: Model, word: str, texts: Sequence[str]) -> tuple[list[Tokens], list[int]]:
    """The tokens of two texts, and the position in each at which the word is read."""
    if isinstance(texts, str) or len(texts) != 2:
        raise InputError(
            f"{DOING}: got {texts!r}, expected two texts, one for each meaning of {word!r}. Give "
            f'("The river {word}", "The mortgage {word}"), say.'
        )
    tokens = [tokenize(model, text) for text in texts]
    return tokens, [cut.positions_of(word)[-1] for cut in tokens]


def _names_of(texts: Sequence[str], names: Sequence[str] | None) -> tuple[str, str]:
    """The names of the meanings of two texts: by default the texts in quotation marks."""
    if names is None:
        return f"“{texts[0]}”", f"“{texts[1]}”"
    if isinstance(names, str) or len(set(names)) != 2 or len(names) != 2 or not all(names):
        raise InputError(
            f"{DOING}: got the names {names!r}, expected two different names, one for each text. "
            'Give ("river", "money"), say.'
        )
    return names[0], names[1]


# --- the read-out layer without labelled sentences ------------------------------------------------


def most_reliable_depth(
    weights: Weights,
    templates: Sequence[Template],
    cues: Sequence[Ids],
    by_depth: Sequence[Axis],
    word: Sequence[int],
) -> int:
    """The first depth at which frames agree about cues (`first_reliable`).

    cues: the token ids of each cue
    by_depth: the axis at every depth
    word: the token ids of the word
    """
    frames = range(len(templates))
    columns = []
    for frame in frames:
        rows = texts_of(templates, cues, [frame] * len(cues))
        parts = []
        for start in range(0, len(cues), CHUNK):
            in_chunk = rows.texts[start : start + CHUNK]
            resid = replace_tokens(weights, in_chunk, [word], parts=()).resid[:, 0]
            along = torch.stack([axis.u for axis in by_depth])
            # Midpoint and gap are equal for all cues, so they do not change a correlation.
            parts.append((resid.double() * along).sum(-1))
        columns.append(torch.cat(parts).numpy())
    values = np.stack(columns, axis=1)  # cue frame depth
    # Depth 0 is left out: the word's embedding has not read the cue.
    reliability = [split_half(values[..., depth]) for depth in range(1, values.shape[-1])]
    return 1 + first_reliable(np.array(reliability), len(cues))


def first_reliable(reliability: Array, cues: int) -> int:
    """The index of the first depth whose split-half reliability is within one standard error of the
    best.

    After the first blocks, frames agree about a token whatever its meaning. Their agreement then
    falls, and rises again where meaning is read. Depths before the first minimum are therefore
    excluded. If the agreement does not rise again by more than a standard error, all depths count.

    reliability: `depth`
    cues: the number of cues that it was measured on
    """
    # standard error of a correlation: (1 - r²) / sqrt(n)
    error = (1 - reliability**2) / np.sqrt(cues)
    minima = np.flatnonzero(np.diff(reliability) > 0)
    start = next((at for at in minima if reliability[at:].max() > (reliability + error)[at]), 0)
    best = start + int(np.argmax(reliability[start:]))
    return int(start) + int(np.argmax(reliability[start:] >= reliability[best] - error[best]))


# --- the share of a head --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sample:
    """A sample of texts.

    stems: the stem of each row's cue
    frames: the number of each row's frame
    rows: the texts
    """

    stems: tuple[str, ...]
    frames: NDArray[np.intp]
    rows: CueTexts


def draw_sample(slots: Slots, *, seed: int, max_texts: int = SAMPLE) -> Sample:
    """A uniform sample of cues, each in one frame, with the frames in turn.

    If there are fewer cues than `max_texts`, each cue appears in as many frames as `max_texts`
    allows.
    """
    sampled = np.random.default_rng(seed).permutation(len(slots.cues))[:max_texts]
    turns = max(1, min(len(slots.frames), max_texts // max(1, len(sampled))))
    numbers = np.repeat(sampled, turns).tolist()
    # Cue i appears in the frames i, i + 1, ..., modulo their number: all frames equally often.
    frames = (np.arange(len(sampled))[:, None] + np.arange(turns)).ravel() % len(slots.frames)
    words, ids = slots.words, slots.ids
    return Sample(
        stems=tuple(stem_of(words[number]) for number in numbers),
        frames=frames,
        rows=texts_of(slots.templates, [ids[number] for number in numbers], frames.tolist()),
    )


class _AtWord(NamedTuple):
    """The measurements in the unchanged runs of a sample.

    mean_z: `frame layer head d_head`, the mean of z at the word over the cues of a frame
    coordinate: `row`, M of the word
    write: `row variant layer head`; variant 0 is the word, the others are the nouns
    """

    mean_z: Tensor
    coordinate: Array
    write: Array


def measure_shares(
    weights: Weights,
    sample: Sample,
    axes: ScanAxes,
    word: Ids,
    nouns: Mapping[str, Ids],
    *,
    seed: int,
    chunk: int = SWAP_CHUNK,
    report: Report | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The share of every head up to the read-out layer, and its writes at nouns: a row for each
    head, and one for each noun and head, with the correlation and the slope over cues of the head's
    write at the noun on its write at the word, along the word's axis.

    Every head is fixed in turn by a swap; no share is approximated.

    axes: a single axis
    word: the token ids of the word, which every text contains
    nouns: the token ids of each noun, as many as those of the word
    seed: of the bootstrap
    chunk: the number of texts whose swaps are run together
    report: called after each chunk with the fraction of the work that is finished
    """
    report = report or (lambda share: None)
    before = _run_at_word(weights, sample, axes, [word, *nouns.values()], chunk, report)
    fixed = _fixed_coordinates(weights, sample, axes, before, chunk, report)
    has_heads = weights.has_heads[: axes.depth].cpu().numpy()
    layer, head = np.indices(fixed.shape[1:])[:, has_heads].reshape(2, -1)
    fixed = fixed[:, has_heads].reshape(len(fixed), -1)
    share, low, high = lost_variance(
        before.coordinate, fixed, sample.frames, sample.stems, seed=seed
    )
    write = before.write[:, :, has_heads].reshape(*before.write.shape[:2], -1)
    r, slope = _of_nouns(write, sample.frames)  # noun head
    heads = pd.DataFrame({"layer": layer, "head": head, "share": share})
    heads = heads.assign(share_low=low, share_high=high, nouns_r=np.nan, nouns_slope=np.nan)
    if nouns:
        heads = heads.assign(nouns_r=r.mean(0), nouns_slope=slope.mean(0))
    columns = {"noun": np.repeat(np.array([*nouns], dtype=object), len(layer))}
    columns |= {"layer": np.tile(layer, len(nouns)), "head": np.tile(head, len(nouns))}
    return heads, pd.DataFrame(columns | {"r": r.ravel(), "slope": slope.ravel()})


def _chunks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _run_at_word(
    weights: Weights,
    sample: Sample,
    axes: ScanAxes,
    variants: Sequence[Ids],
    chunk: int,
    report: Report,
) -> _AtWord:
    """The unchanged runs of a sample.

    variants: the token ids of the word, then of each noun that is put in its position
    """
    rows = len(sample.stems)
    writers = axes.writers(weights)[..., 0]
    frames = int(sample.frames.max()) + 1
    sums = torch.zeros(frames, *writers.shape, dtype=torch.float64)
    coordinate = np.empty(rows)
    write = np.empty((rows, len(variants), *writers.shape[:2]))
    for part in _chunks(rows, max(1, chunk // len(variants))):
        states = replace_tokens(
            weights, sample.rows.texts[part], variants, parts=("z",), depth=axes.depth
        )
        z = states.z.double().unflatten(0, states.resid.shape[:2])  # row variant layer head d_head
        sums.index_add_(0, torch.from_numpy(sample.frames[part]), z[:, 0])
        coordinate[part] = axes.coordinate(states.resid[:, 0, -1])[:, 0].numpy()
        write[part] = torch.einsum("rvlhd,lhd->rvlh", z, writers).numpy()
        report(0.4 * part.stop / rows)  # the swaps of every head take the other 60 % of the time
    counts = np.bincount(sample.frames, minlength=frames)
    mean_z = sums / torch.from_numpy(counts)[:, None, None, None]
    return _AtWord(mean_z, coordinate, write)


def _fixed_coordinates(
    weights: Weights, sample: Sample, axes: ScanAxes, before: _AtWord, chunk: int, report: Report
) -> Array:
    """M of every text with one head's output at the word fixed at its mean over the cues of the
    frame.

    `-> row layer head`
    """
    rows = len(sample.stems)
    direction = axes.u[:, -1].to(weights.device, weights.dtype)
    fixed = np.empty((rows, *before.mean_z.shape[1:3]))
    for part in _chunks(rows, chunk):
        donors = before.mean_z[torch.from_numpy(sample.frames[part])].to(weights.dtype)
        changes = swap_heads(weights, sample.rows.texts[part], donors, direction)[..., 0]
        fixed[part] = before.coordinate[part, None, None] + changes.double().numpy()
        report(0.4 + 0.6 * part.stop / rows)
    return fixed


def lost_variance(
    whole: Array,
    fixed: Array,
    frames: NDArray[np.intp],
    clusters: Sequence[str],
    *,
    seed: int,
) -> tuple[Array, Array, Array]:
    """1 - Var(fixed) / Var(whole) with variances within frames, and the ends of its 95 % bootstrap
    interval over clusters of cues.

    `row, row head -> head, head, head`

    NaN if `whole` does not vary.
    """
    equal_weights = np.ones((1, len(whole)))
    weights = resampling.bootstrap_weights([clusters], seed=seed)
    both = np.concatenate([whole[:, None], fixed], axis=1)
    draws = lost_shares(both, frames, np.concatenate([equal_weights, weights]))
    # The first weighting is the estimate, the others are the bootstrap draws.
    low, high = resampling.interval(draws[1:])
    return draws[0], low, high


def lost_shares(both: Array, frames: NDArray[np.intp], weights: Array) -> Array:
    """1 - Var(fixed) / Var(whole) under every weighting; column 0 of `both` is `whole`.

    `row 1 + head, draw row -> draw head`
    """
    squares = np.zeros((len(weights), both.shape[1]))
    for frame in np.unique(frames):
        here = frames == frame
        # Centred first, so that a column that does not vary becomes exactly 0.
        values = both[here] - both[here].mean(0)
        in_frame = weights[:, here]
        total = in_frame.sum(1, keepdims=True)
        means = in_frame @ values / np.maximum(total, 1)
        # Σ_row w (x - mean)² = Σ_row w x² - (Σ_row w) mean²
        squares += in_frame @ values**2 - total * means**2
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(squares[:, :1] > 0, 1 - squares[:, 1:] / squares[:, :1], np.nan)


def _of_nouns(write: Array, frames: NDArray[np.intp]) -> tuple[Array, Array]:
    """Correlation and slope of the writes at each noun on the writes at the word, within frames.

    `row variant head -> noun head, noun head`
    """
    centred = np.empty_like(write)
    for frame in np.unique(frames):
        here = frames == frame
        centred[here] = write[here] - write[here].mean(0)
    # r = Σ n w / sqrt(Σ n² Σ w²), slope = Σ n w / Σ w², with w at the word and n at the noun
    word = centred[:, :1]
    products = (centred[:, 1:] * word).sum(0)
    of_word = (word**2).sum(0)
    of_nouns = (centred[:, 1:] ** 2).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        r = products / np.sqrt(of_word * of_nouns)
        slope = products / of_word
    return r, slope


# --- held-out cues --------------------------------------------------------------------------------


def auroc_of(values: Array, is_a: Sequence[bool]) -> dict[str, Array]:
    """AUROC of cues of the first sense against cues of the second, and the ends of its 95 %
    interval over cues, by the names AUROC. `n` each; 0.5 is chance, 1 complete separation

    values: `cue n`, n separate readings of each cue
    is_a: `cue`, whether it is a cue of the first sense
    """
    estimate = _auroc(values, is_a)
    cues = [list(range(len(values)))]
    low, high = resampling.auroc_interval(estimate, values, list(is_a), cues)
    return dict(zip(AUROC, (estimate, low, high), strict=True))


def _auroc(values: Array, is_a: Sequence[bool]) -> Array:
    """AUROC of the cues of the first sense against those of the second. `cue ... -> ...`"""
    of_a = np.array(is_a)
    return np.asarray(resampling.auroc(values[of_a], values[~of_a]))


def _baselines(weights: Weights, templates: Sequence[Template], fitted: Fitted) -> dict[str, float]:
    """AUROC of held-out cues without the ambiguous word, by the names BASELINES: if it is as high,
    that of the word is no evidence of ambiguity. At unambiguous nouns in the word's place, each
    along its own axes, and of the cue's token embedding, without any context.
    """
    at_nouns: list[Any] = [
        _auroc(_read_held_out(weights, templates, held_out, [], noun)[:, 0], held_out.is_a)
        for noun, held_out in fitted.at_nouns.items()
    ] or [np.nan]
    values = (np.mean(at_nouns), np.min(at_nouns), np.max(at_nouns), *fitted.by_embedding)
    return dict(zip(BASELINES, map(float, values), strict=True))


def _read_held_out(
    weights: Weights,
    templates: Sequence[Template],
    held_out: HeldOut,
    heads: Sequence[HeadIndex],
    noun: Ids = (),
) -> Array:
    """The coordinate with each held-out cue, then the write of each head, mean over frames. Every
    cue is read along the axis that was fitted without it.

    `-> cue (1 + head)`

    noun: the token ids of a noun that replaces the word; by default the word stays
    """
    rows = in_every_frame(templates, held_out.cues)
    if noun:
        rows = rows._replace(texts=[with_tokens(text, noun) for text in rows.texts])
    read = read_texts(weights, rows, held_out.axes, heads)
    axis = np.repeat(held_out.axis, len(templates))
    row = np.arange(len(axis))
    values = np.concatenate([read.coordinate[row, axis, None], read.write[row, :, axis]], axis=1)
    # `(cue frame) (1 + head) -> cue (1 + head)`
    by_cue: Array = values.reshape(len(held_out.cues), len(templates), -1).mean(1)
    return by_cue


def token_embeddings(weights: Weights, cues: Sequence[Ids]) -> Tensor:
    """The embedding of each cue, mean over its tokens, in float64. `-> cue d_model`

    cues: the token ids of each cue
    """
    table = weights.raw[weights.config.family.embed + ".weight"]
    return torch.stack([table[list(ids)].double().mean(0) for ids in cues]).cpu()


def whitening(weights: Weights) -> Tensor:
    """W with Wᵀ C W = 1, where C is the covariance of the token embeddings over the vocabulary.

    `-> d_model n`, with n < d_model if some directions do not vary.
    """
    table = weights.raw[weights.config.family.embed + ".weight"]
    mean = table.mean(0, dtype=torch.float64)
    covariance = mean.new_zeros(len(mean), len(mean))
    for part in table.split(TABLE_ROWS):  # the whole table in float64 can take gigabytes
        centred = part.double() - mean
        covariance += centred.T @ centred / len(table)
    values, vectors = torch.linalg.eigh(covariance.cpu())
    varies = values > values[-1] * LEAST_VARIANCE
    return vectors[:, varies] / values[varies].sqrt()
