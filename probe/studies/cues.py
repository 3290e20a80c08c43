"""The cue scan: every word of the vocabulary as the cue of an ambiguous word.

This module fits the axis, chooses the heads and returns the tables. The scan itself is
`probe.experiments.cues`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from probe.errors import InputError, require_at_least
from probe.experiments.candidates import candidates, rows_for, with_tokens
from probe.experiments.cue_words import DOING, Cue, Slots, ask, occur_in, without_beginnings
from probe.experiments.cues import (
    DEPTH_SAMPLE,
    Auroc,
    Baselines,
    Scan,
    ScanAxes,
    Shares,
    Template,
    axes_of_sentences,
    draw_sample,
    measure_shares,
    most_reliable_depth,
    read_texts,
    scan,
    scan_axes,
    tell_apart,
    texts_of,
    token_embeddings,
    whitening,
)
from probe.experiments.material import choose_words, prepare, sentences_of
from probe.experiments.observe import Observation, SenseAxes, observe
from probe.model.architectures import require_single
from probe.model.check import certify
from probe.model.load import ModelSource, load
from probe.model.model import Model
from probe.model.tokens import Tokens, ids_after, tokenize
from probe.model.trace import target_states
from probe.model.weights import Weights, weights_of
from probe.patching.sets import HeadIndex
from probe.patching.tokens import replace_tokens
from probe.progress import Progress, silent
from probe.provenance import content_key, sha256_of_bytes
from probe.results.cues import Cues, cue_rows, head_rows, noun_rows, summary_row
from probe.stats import axes as sense_axes
from probe.stats import resampling
from probe.stats.axes import Axis, HeldOutAxes, hold_out
from probe.stats.limits import SMALLEST
from probe.stats.resampling import Array
from probe.text import lexicon
from probe.text.sentences import as_corpus
from probe.text.slots import words_of
from probe.text.splits import CrossFit, restrict

TOP = 4  # heads whose attention, score and write are stored for every cue
NOUNS = 10  # unambiguous nouns that replace the word
TWO_TEXTS = "two texts"
GIVE_TEXTS = (
    "give two texts with the word (texts=, on the command line --texts) or sentences (sentences=, "
    "--sentences)"
)
ROUNDING = 1e-5  # of the length of a vector: two that differ by less are the same


class MeasuredCues(NamedTuple):
    """The measurements of a word."""

    shares: Shares
    scan: Scan
    auroc: Auroc | None  # of held-out cues; None without any
    baselines: Baselines | None  # of the same cues


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Cue words of the sentences, each with an axis that was fitted without it.

    axes: one for each fold
    axis: the number of each cue's axis. `cue`
    is_a: whether it is a cue of the first sense. `cue`
    """

    cues: list[Cue]
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
    at_nouns: Mapping[tuple[int, ...], HeldOut] = field(default_factory=dict)
    by_embedding: tuple[float, float] = (float("nan"), float("nan"))


def cues(
    model: ModelSource,
    word: str,
    *,
    sentences: Any = None,
    texts: Sequence[str] | None = None,
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
    cues: words to try, or a file with one in each line. By default every word that is one token of
        the model, except tokens that the model expects to continue as a longer word
    frames: short texts with the word and one slot `_` for the cue, or a file with one in each line.
        By default four with the cue 1 to 4 words before the word, and in a model that reads both
        ways two with the cue after it
    seed: of the sample of cues and of every random draw
    progress: called with a stage's name and the share of the work that is done

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
    require_at_least(0, seed, "seed", doing=DOING, usual=0)
    if sentences is not None and texts is not None:
        raise InputError(f"{DOING}: got both sentences and texts. Give one of the two.")
    model = load(model)
    require_single(model.config.architecture, "a cue scan")
    report = progress or silent
    slots = ask(
        model,
        word,
        cues=None if cues is None else _lines(cues),
        frames=None if frames is None else _lines(frames),
    )
    # Sentences and texts that cannot be used are refused first, within seconds.
    report("axis", 0.01)
    if texts is None:
        fitted = _fit_sentences(model, word, sentences, slots, seed=seed)
    else:
        _read_texts(model, word, texts)
    # Then the certificate: a scan takes minutes, and its numbers would be refused at the end.
    report("certificate", 0.02)
    certificate = certify(model, [slots.example]).require()
    # A user's cues are taken as they are; of the vocabulary only whole words are cues.
    if cues is None:
        slots = without_beginnings(
            model, slots, report=lambda share: report("which tokens are words", 0.04 + 0.2 * share)
        )
    if texts is not None:
        report("axis", 0.24)
        fitted = fit_texts(model, word, texts, slots, seed=seed)
    measured = _measure(model, word, slots, fitted, report, seed=seed)
    options: dict[str, object] = {
        "word": word,
        "sentences": fitted.source,
        "texts": None if texts is None else list(texts),
        "frames": [frame.text for frame in slots.frames],
        "cues": "every word of the vocabulary" if cues is None else content_key(*slots.words),
        "left_out": list(slots.not_held),
        "seed": seed,
    }
    by_name = _tables(word, slots, fitted, measured)
    return Cues(model.name, model.origin, options, certificate, by_name, fitted.sha256)


def _measure(
    model: Model, word: str, slots: Slots, fitted: Fitted, report: Progress, *, seed: int
) -> MeasuredCues:
    """The shares of all heads, and the scan of the heads with the largest shares."""
    weights = weights_of(model)
    sample = draw_sample(slots.templates, slots.words, slots.ids, seed=seed)
    shares = measure_shares(
        weights,
        sample,
        fitted.axes,
        slots.word,
        _nouns(model, slots.before, word, slots.word),
        seed=seed,
        report=lambda share: report("shares of heads", 0.26 + 0.2 * share),
    )
    top = top_heads(shares)
    scanned = scan(
        weights,
        slots.templates,
        slots.ids,
        fitted.axes,
        top,
        report=lambda share: report("cues", 0.46 + 0.5 * share),
    )
    if fitted.held_out is None:
        return MeasuredCues(shares, scanned, None, None)
    # By the coordinate, then by the write of each head.
    by_cue = _read_held_out(weights, slots.templates, fitted.held_out, top)
    auroc = tell_apart(by_cue, np.array(fitted.held_out.is_a))
    at_nouns = [
        _auroc(_read_held_out(weights, slots.templates, held_out, [], noun)[:, 0], held_out.is_a)
        for noun, held_out in fitted.at_nouns.items()
    ]
    baselines = Baselines(np.array(at_nouns), *fitted.by_embedding)
    return MeasuredCues(shares, scanned, auroc, baselines)


def _tables(
    word: str, slots: Slots, fitted: Fitted, measured: MeasuredCues
) -> dict[str, pd.DataFrame]:
    """The frames of a scan by name."""
    shares, scanned, auroc, baselines = measured
    held_out = 0 if fitted.held_out is None else len(fitted.held_out.cues)
    axes = fitted.axes
    return {
        "cues": cue_rows(slots.words, occur_in(fitted.texts, slots.words), scanned),
        "cues_heads": head_rows(shares, scanned, auroc),
        "cues_nouns": noun_rows(shares),
        "cues_summary": summary_row(
            word,
            axes.senses,
            axes.depth,
            scanned,
            shares,
            auroc,
            baselines,
            held_out,
            slots.beginnings,
        ),
    }


def top_heads(shares: Shares) -> list[HeadIndex]:
    """The heads with the largest shares: at most TOP with at least SMALLEST each, or the first head
    if no share is that large."""
    order = resampling.order(shares.share).tolist()
    large = [number for number in order if shares.share[number] >= SMALLEST]
    return [shares.heads[number] for number in (large or order[:1])[:TOP]]


# --- arguments ------------------------------------------------------------------------------------


def _lines(source: Sequence[str] | str | Path) -> list[str]:
    """The different texts of a list, or lines of a file, without empty ones."""
    if isinstance(source, str | Path):
        try:
            source = Path(source).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{DOING}: {source} cannot be read as a text file ({type(error).__name__}). Give a "
                "file in UTF-8 with one entry in each line."
            ) from error
    if not isinstance(source, Collection) or not all(isinstance(line, str) for line in source):
        raise InputError(f"{DOING}: got {source!r}, expected texts. Give a list of texts.")
    return list(dict.fromkeys(line.strip() for line in source if line.strip()))


def _nouns(
    model: Model, before: str, word: str, ids: Sequence[int]
) -> list[tuple[str, tuple[int, ...]]]:
    """Unambiguous nouns with as many tokens as the word, and their ids after `before`."""
    names = [noun for noun in lexicon.one_meaning_nouns() if noun != word]
    fitting = [
        (noun, noun_ids)
        for noun, noun_ids in zip(names, ids_after(model, before, names), strict=True)
        if noun_ids is not None and len(noun_ids) == len(ids)
    ]
    return fitting[:NOUNS]


# --- the axis -------------------------------------------------------------------------------------


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
        row: Cue(cue, ids)
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
        by_embedding=_by_embedding(weights_of(model), pair.split, cues),
    )


def _held_out(
    split: CrossFit, axes: HeldOutAxes, cues: Mapping[int, Cue], depth: int
) -> HeldOut | None:
    """The cue words that an axis was fitted without; None with fewer than two of a sense.

    cues: the cue of each row of the split that has one
    depth: the read-out layer
    """
    axis_of: dict[str, int] = {}
    is_first: dict[str, bool] = {}
    by_word: dict[str, Cue] = {}
    for row, cell, is_a in zip(split.rows, split.cells, split.is_a, strict=True):
        if row in cues and cell >= 0:
            cue = cues[row]
            by_word[cue.word] = cue
            axis_of[cue.word] = int(cell)
            is_first[cue.word] = bool(is_a)
    of_a = [is_first[word] for word in by_word]
    # AUROC compares cues of the two senses, at least two of each.
    if min(of_a.count(True), of_a.count(False)) < 2:
        return None
    upto = slice(depth + 1)
    # u / gap: a coordinate along it is in units of the gap. `cell depth d_model`
    scaled = axes.u[:, upto] / axes.fitted_gap[:, upto, None]
    by_cell = ScanAxes(axes.senses, scaled, axes.midpoint[:, depth])
    return HeldOut(list(by_word.values()), by_cell, [axis_of[word] for word in by_word], of_a)


def _restricted(split: CrossFit, rows: Collection[int]) -> CrossFit:
    """The split of some of its rows, which are then numbered from 0 in the order of the split."""
    positions = [number for number, row in enumerate(split.rows) if row in rows]
    return replace(restrict(split, positions), rows=tuple(range(len(positions))))


def _at_nouns(
    model: Model, observation: Observation, pair: SenseAxes, cues: Mapping[int, Cue], slots: Slots
) -> dict[tuple[int, ...], HeldOut]:
    """The held-out cue words with the axes of unambiguous nouns, fitted like those of the word: on
    the same sentences with the noun in the word's place. By the noun's token ids.
    """
    material = observation.material
    names = [noun for noun, _ in _nouns(model, slots.before, material.word, slots.word)]
    among = candidates(model, material, names)
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


def _by_embedding(
    weights: Weights, split: CrossFit, cues: Mapping[int, Cue]
) -> tuple[float, float]:
    """AUROC of the cues' token embeddings, plain and whitened over the vocabulary, along the
    difference of the two senses' means. Held out like the cues of the word.
    """
    inside = _restricted(split, cues)
    embeddings = token_embeddings(weights, [cues[row].ids for row in split.rows if row in cues])
    # One row for each cue word, of those that are held out.
    words = [cues[row].word for row in split.rows if row in cues]
    row_of = {word: row for row, word in enumerate(words) if inside.cells[row] >= 0}
    rows = list(row_of.values())
    is_a = [inside.is_a[row] for row in rows]
    aurocs = []
    for vectors in (embeddings, embeddings @ whitening(weights)):
        axes = hold_out(vectors[:, None], inside, ("", ""))
        aurocs.append(_auroc(axes.coordinates(vectors[rows, None], rows)[:, 0], is_a))
    return aurocs[0], aurocs[1]


def _auroc(values: Array, is_a: Sequence[bool]) -> float:
    """AUROC of the cues of the first sense against those of the second. `cue`"""
    of_a = np.array(is_a)
    return float(resampling.auroc(values[of_a], values[~of_a]))


def fit_texts(
    model: Model,
    word: str,
    texts: Sequence[str],
    slots: Slots,
    *,
    seed: int,
    sample_size: int = DEPTH_SAMPLE,
) -> Fitted:
    """The axis through the word in two texts, at the layer where frames agree best about cues.

    sample_size: how many of the cues are used to choose the layer
    """
    tokens, positions = _read_texts(model, word, texts)
    # One text per sense: at every depth the axis is the difference of two vectors.
    states = target_states(model, tokens, positions)
    senses = _labels(texts)
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
    numbers = rng.permutation(len(slots.cues))[:sample_size]
    sample = [slots.cues[number].ids for number in numbers]
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


def _labels(texts: Sequence[str]) -> tuple[str, str]:
    """A label for each of two texts: the words that the other one lacks, or else the text."""
    words = [words_of(text) for text in texts]
    labels = [
        " ".join(word for word in words[side] if word not in words[1 - side]) for side in (0, 1)
    ]
    return labels[0] or texts[0], labels[1] or texts[1]


def _read_held_out(
    weights: Weights,
    templates: Sequence[Template],
    held_out: HeldOut,
    heads: Sequence[HeadIndex],
    noun: Sequence[int] = (),
) -> Array:
    """The coordinate with each held-out cue, then the write of each head, mean over frames. Every
    cue is read along the axis that was fitted without it.

    `-> cue (1 + head)`

    noun: the token ids of a noun that replaces the word; by default the word stays
    """
    frames = list(range(len(templates)))
    rows = texts_of(
        templates,
        [cue.ids for cue in held_out.cues for _ in frames],
        [frame for _ in held_out.cues for frame in frames],
    )
    if noun:
        rows = rows._replace(texts=[with_tokens(text, noun) for text in rows.texts])
    read = read_texts(weights, rows, held_out.axes, heads)
    axis = np.repeat(held_out.axis, len(frames))
    row = np.arange(len(axis))
    values = np.concatenate([read.coordinate[row, axis, None], read.write[row, :, axis]], axis=1)
    # `(cue frame) (1 + head) -> cue (1 + head)`
    by_cue: Array = values.reshape(len(held_out.cues), len(frames), -1).mean(1)
    return by_cue
