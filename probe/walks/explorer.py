"""A model's answers to the questions of the explorer's page, as messages of plain JSON.

An answer is an iterator of messages: any number of {"doing": ..., "progress": 0 to 1}, then
{"result": ...}. The caller closes it between two messages if nobody needs it any more. `doing` is a
key of the page's script, which has the words for it. The last few traces, runs and axes are cached,
so that a swap costs only a run from the word on.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probe.claims.cues import strongest_cues
from probe.errors import InputError, UnsupportedModel
from probe.experiments import cue_sample
from probe.experiments.cues import ask, occur_in, scan, split_half, without_beginnings
from probe.experiments.observe import Observation
from probe.model import forward
from probe.model.decomposition import (
    DecompositionEntry,
    average,
    decompose_resid,
    residual_stream,
)
from probe.model.model import Model, require_heads
from probe.model.records import Trace
from probe.model.tokens import require_text, tokenize, visible_token
from probe.model.trace import target_states, trace
from probe.model.weights import weights_of
from probe.patching import positions
from probe.patching.pair import (
    HeadPatch,
    PairCache,
    PairReading,
    PatchedRun,
    cache_pair,
    generate,
    run_with_patch,
)
from probe.stats.axes import Axis
from probe.studies.cues import fit_texts
from probe.walks import axes, choose, sentences
from probe.walks.axes import AxisAtDepth, SenseAxis
from probe.walks.block import packed, page_block, rounded, score_row
from probe.walks.frames import tokens
from probe.walks.numbers import from_content, measure
from probe.walks.page import choices
from probe.walks.pair import causal_trace, read_pair, trace_steps
from probe.walks.questions import Question
from probe.walks.scene import (
    SAME_VECTOR,
    AttentionView,
    Scene,
    SecondSentence,
    WordInText,
)
from probe.walks.walk import check_length

Message = dict[str, Any]
MAX_TOKENS = 128  # of a text; a trace has the square of it for every head
CACHE_SIZE = 8  # texts with cached traces and runs: both sentences, and a few earlier ones
MAX_NEW_TOKENS = 20  # that the model writes after a sentence
N_NEXT = 8  # next tokens that are listed
N_CANDIDATES = 40  # next tokens among which a content word is looked for
COORDINATE_DIGITS = 6  # of a coordinate
DRAWN_DIGITS = 4  # of a fraction that is drawn
N_LEADING = 12  # listed terms of the coordinate
SEED = 0  # for the sample of words that are tried as the cue
N_DEPTH_CUES = 64  # words that choose the layer at which their cues are read
CUES_AT_ONCE = 64  # words between two messages
N_WORDS = 12  # that are listed on each side


@dataclass(frozen=True, eq=False)
class SessionState:
    """A question, with its word in the text and in the second text, if there is one."""

    question: Question
    word_choice: choose.ChosenWord
    word: WordInText
    second: WordInText | None

    @property
    def axis_kind(self) -> str:
        """The kind of the axis. With one sentence, "lexicon". With two, "sentences", unless the
        question asks for the lexicon's axis and the lexicon has the word.
        """
        if self.second is None:
            return "lexicon"
        has_word = bool(choose.lexicon_words_in(self.word.text))
        return "lexicon" if self.question.axis == "lexicon" and has_word else "sentences"

    @property
    def default_kind(self) -> str:
        """What a swapped head gets by default: its z at the word of the other sentence; with one
        sentence, z halfway between both meanings.
        """
        return "mean" if self.second is None else "other"


class Explorer:
    """A model that answers questions, with cached results of the last texts. Not thread-safe."""

    def __init__(self, model: Model) -> None:
        """Raises UnsupportedModel for an encoder-decoder."""
        if model.config.start_token is not None:
            raise UnsupportedModel(
                f"Cannot explore {model.name}: it is an encoder-decoder, whose heads read two "
                "texts. Use `probe walk TEXT --target`, or explore a model with one stack, such as "
                "tiny-senses."
            )
        require_heads(model.config, "an exploration", "use report, patch or trace")
        self.model = model
        self.weights = weights_of(model)
        cached = lru_cache(CACHE_SIZE)
        self.trace_of: Callable[[str], Trace] = cached(partial(trace, model))
        self.run_of: Callable[[str], PairCache] = cached(self._run)
        self.lexicon_of: Callable[[str], Observation | None] = cached(
            partial(axes.lexicon_states, model)
        )
        self.axis_of: Callable[[str, str, str | None, str], SenseAxis] = cached(self._fit_axis)
        self.unchanged_run: Callable[[str, int], PatchedRun] = cached(self._unchanged_run)

    def answer(self, question: Question) -> Iterator[Message]:
        """The messages of an answer, the last one with the result. Raises ProbeError if it cannot
        be answered.
        """
        method: Callable[[Question], Iterator[Message]] = getattr(self, question.what)
        return method(question)

    def state(self, question: Question) -> SessionState:
        """The word in both texts.

        Raises InputError for a text that cannot be read or is too long, a word that is not in it,
        and a head that the model does not have.
        """
        self._check_text(question.text)
        if question.against is not None:
            self._check_text(question.against)
        word_choice = choose.choose_word(question.text, question.word, also_in=question.against)
        word = choose.word_in_text(self.model, question.text, word_choice.word)
        if question.follow is not None:
            choose.check_head(self.model, question.follow)
        for swap in question.swaps:
            choose.check_head(self.model, (swap.layer, swap.head))
        second = None
        if question.against is not None:
            second = choose.word_in_text(self.model, question.against, word.text)
        return SessionState(question, word_choice, word, second)

    def _check_text(self, text: str) -> None:
        require_text(text)
        if "\x00" in text:
            raise InputError(
                "Cannot read the text: it contains a NUL character, which no tokenizer reads. "
                "Remove it."
            )
        n_tokens = len(tokenize(self.model, text))
        if n_tokens > MAX_TOKENS:
            raise InputError(
                f"Cannot read the text: it has {n_tokens} tokens, and the explorer reads at most "
                f"{MAX_TOKENS}. Shorten it, or use `probe walk`."
            )
        check_length(self.model, n_tokens)

    def sentence(self, question: Question) -> Iterator[Message]:
        """The page's block of a text for the followed head, with how far each head moves the word
        when it alone is swapped, and the likeliest next tokens.
        """
        state = self.state(question)
        view = AttentionView.of_self_attention(self.trace_of(question.text))
        yield {"doing": "read", "progress": 0.4}
        second = None
        if state.second is not None:
            second_trace = self.trace_of(state.second.tokens.text)
            second_view = AttentionView.of_self_attention(second_trace)
            second = SecondSentence(second_view, state.second)
            yield {"doing": "read", "progress": 0.6}
        yield {"doing": "effects", "progress": 0.7}
        sense_axis = self._known_axis(state)
        swaps = None if sense_axis is None else self.swap_effects(state, sense_axis)
        choice = choose.choose_head(
            question.follow or (None, None), swaps, "swap", from_content(view, state.word)
        )
        scene = Scene(
            view,
            state.word,
            choice.layer,
            choice.head,
            second,
            contrast=second is not None,
            swaps=swaps,
        )
        # The page shows no nearest tokens, which are the slowest quantities of a walk.
        quantities, agreement = measure(scene, neighbours=False)
        yield {"doing": "read", "progress": 0.9}
        said = sentences.statements(self.model, scene, quantities, choice, state.word_choice)
        block = page_block(self.model, scene, quantities, agreement) | {"answer": said["answer"]}
        axis_facts: Message = {"kind": state.axis_kind}
        if sense_axis is not None:
            axis = sense_axis.axis
            axis_facts |= {"senses": [axis.sense_a, axis.sense_b], "depth": axis.depth}
        result = {
            "text": question.text,
            "other": question.against,
            "caution": said["caution"] or _spelled_otherwise(state),
            "guessed": said["guessed"],
            "places": said["repeated"],
            "block": block,
            "choices": choices(tokens(scene)),
            "swapped_by": state.default_kind,
            "next": self._next_tokens(view, state.word),
            "lexicon": bool(choose.lexicon_words_in(state.word.text)),
            "axis": axis_facts,
        }
        yield {"result": result}

    def _next_tokens(self, view: AttentionView, word: WordInText) -> Message | None:
        """The likeliest tokens after the text, or at the word if the model reads both ways; None
        without a language-model head.
        """
        if view.stream.head_output is None:
            return None
        pos = len(word.tokens) - 1 if self.weights.causal else word.at
        logits = view.stream.logits[pos]
        return self._probabilities([logits], logits.topk(N_NEXT).indices.tolist())

    def _probabilities(self, runs: Sequence[Tensor], ids: Sequence[int]) -> Message:
        """Next tokens as text, and their probabilities in each run. runs: logits, `d_vocab` each"""
        return {
            "pieces": [visible_token(self.model, token) for token in ids],
            "probabilities": [
                [rounded(value) for value in logits.double().softmax(-1)[list(ids)].tolist()]
                for logits in runs
            ],
        }

    def _changed_most(self, before: Tensor, after: Tensor) -> list[int]:
        """The next tokens whose probability changed most, largest change first. A content word
        leads if there is one among the N_CANDIDATES largest changes: it shows the meaning.
        """
        change = (after.double().softmax(-1) - before.double().softmax(-1)).abs()
        ids: list[int] = change.topk(min(N_CANDIDATES, len(change))).indices.tolist()
        words = [token for token in ids if self._is_content_word(token)]
        return list(dict.fromkeys([*words[:1], *ids]))[:N_NEXT]

    def _is_content_word(self, token: int) -> bool:
        """Whether a token by itself is a content word, or begins one."""
        text = self.model.tokenizer.decode([token]).strip()
        return len(text) > 2 and text.isalpha() and text.casefold() not in choose.FUNCTION_WORDS

    def _run(self, text: str) -> PairCache:
        """The run of a text, with every layer cached."""
        ids = tokenize(self.model, text).ids
        with torch.inference_mode():
            return cache_pair(self.weights, [ids], len(ids) - 1, len(self.weights.blocks))

    def sense_axis_of(self, state: SessionState) -> SenseAxis:
        """The axis of `state.axis_kind`. Raises InputError if there is none."""
        question = state.question
        return self.axis_of(question.text, state.word.text, question.against, state.axis_kind)

    def _known_axis(self, state: SessionState) -> SenseAxis | None:
        """The axis, or None if there is none. The page shows everything else without it."""
        try:
            return self.sense_axis_of(state)
        except InputError:
            return None

    def _fit_axis(self, text: str, word_text: str, second_text: str | None, kind: str) -> SenseAxis:
        word = choose.word_in_text(self.model, text, word_text)
        second = None
        second_stream = None
        if second_text is not None:
            second = choose.word_in_text(self.model, second_text, word_text)
        if second is not None and kind == "sentences":
            between = axes.sentence_axis(self.model, word, second)
            if not axes.has_length(between.axis):
                raise InputError(_no_way(word, second, self.weights.causal))
            return between
        if second is not None:
            second_stream = residual_stream(self.trace_of(second.tokens.text), second.at)
        entry = choose.lexicon_entry(word.text)
        entry_in_lexicon = None if entry is None else self.lexicon_of(entry)
        if entry_in_lexicon is None:
            raise InputError(
                f"Cannot move “{word_text}” toward another meaning: the lexicon does not have it, "
                "and there is only one sentence. Give a second one in which it means something "
                "else."
            )
        view = AttentionView.of_self_attention(self.trace_of(text))
        return axes.lexicon_axis(self.model, entry_in_lexicon, view, word, second_stream)

    def along(self, question: Question) -> Iterator[Message]:
        """The coordinate of the word on the axis, and the contribution of every head by source
        token and of every other component.

        Each contribution is minus the one at the word of the other sentence, or, with one sentence,
        halfway between both meanings. Positive is the direct effect of the default swap toward the
        other meaning: no later part responds.
        """
        state = self.state(question)
        word = state.word
        yield {"doing": "axis", "progress": 0.1}
        sense_axis = self.sense_axis_of(state)
        axis = sense_axis.axis
        text_trace = self.trace_of(question.text)
        yield {"doing": "decompose", "progress": 0.6}
        by_source = torch.zeros(*self.weights.shape[:2], len(word.tokens))
        rows: list[Message] = []
        for term in self._writes(state, sense_axis.read_out):
            contribution = term.contribution or 0.0
            _hold_source(by_source, term)
            source = None if term.pos is None else text_trace.tokens.pieces[term.pos]
            row = {"name": term.component, "layer": term.layer, "head": term.head}
            rows.append(row | {"moved": contribution, "pos": term.pos, "source": source})
        if axis.depth < len(by_source):
            # Heads after the read-out layer are read after the last layer.
            for term in self._writes(state, sense_axis.last):
                if term.layer is not None and term.layer >= axis.depth:
                    _hold_source(by_source, term)
        coordinates = {
            "first": _coordinate(axis, residual_stream(text_trace, word.at)),
            "second": self._second_coordinate(state, axis),
        }
        # A swap needs these runs. They are made now, so that it is answered at once.
        yield {"doing": "cache", "progress": 0.8}
        self.unchanged_run(question.text, word.at)
        if question.against is not None:
            self.run_of(question.against)
        result = {
            "senses": [axis.sense_a, axis.sense_b],
            "depth": axis.depth,
            "n_sentences": sense_axis.n_sentences,
            "coordinates": coordinates,
            "leading": sorted(rows, key=lambda row: -abs(row["moved"]))[:N_LEADING],
            "arrays": {"direct": packed(by_source.sum(-1)), "direct_source": packed(by_source)},
            "sum": sum(row["moved"] for row in rows),
        }
        yield {"result": result}

    def _writes(self, state: SessionState, reading: AxisAtDepth) -> list[DecompositionEntry]:
        """The contribution of each component to the word's coordinate, by source token, minus its
        contribution in the donor of a swap: the second sentence, or else the mean over sentences.
        """
        reference = reading.average
        depth = reading.axis.depth
        if state.second is not None:
            states = target_states(self.model, [state.second.tokens], [state.second.at])
            reference = average(self.weights, states, [0], [0], depth=depth)
        text_trace = self.trace_of(state.question.text)
        return decompose_resid(
            text_trace, depth, at=state.word.at, axis=reading.axis, average=reference
        )

    def _second_coordinate(self, state: SessionState, axis: Axis) -> float | None:
        """The coordinate of the word in the second sentence; None without one."""
        if state.second is None:
            return None
        second_trace = self.trace_of(state.second.tokens.text)
        return _coordinate(axis, residual_stream(second_trace, state.second.at))

    def _way(self, state: SessionState, swapped: Tensor) -> list[float] | None:
        """How far the word is from its vector in the first sentence to the one in the second, at
        each depth, with heads swapped; None along the axis of the lexicon.

        swapped: `depth d_model`, the word's stream with the swap

            <s - x, x' - x> / |x' - x|²: 0 at x, in the first sentence, and 1 at x', in the second
        """
        if state.axis_kind != "sentences":
            return None
        texts = (state.word, self._require_second(state))
        first, second = (residual_stream(self.trace_of(one.tokens.text), one.at) for one in texts)
        apart = second - first
        way = ((swapped - first) * apart).sum(-1) / apart.square().sum(-1)
        # Where the two are equal, as at the embedding, no swap has changed anything yet.
        is_same = apart.norm(dim=-1) <= SAME_VECTOR * first.norm(dim=-1)
        way = way.masked_fill(is_same, 0.0)
        return [round(value, DRAWN_DIGITS) + 0.0 for value in way.tolist()]

    def swap_effects(self, state: SessionState, sense_axis: SenseAxis) -> Tensor:
        """How far each head moves the word toward its other meaning when it alone is swapped.
        `layer head`
        """
        kind = state.default_kind
        donor = self._donors(state, {kind})[kind]
        return axes.swap_effects(self.model, state.word, donor, sense_axis)

    def _donors(self, state: SessionState, kinds: Collection[str]) -> dict[str, Tensor]:
        """z of every head at the word, by the kind of swap. `layer head d_head` each."""
        n_layers, n_heads, _, d_head = self.weights.shape
        donors = {"off": torch.zeros(n_layers, n_heads, d_head, dtype=self.weights.dtype)}
        if "other" in kinds:
            if state.second is None:
                raise InputError(
                    "Cannot swap a head with the other sentence's: got only one sentence. Give a "
                    "second one with the same word, use the head's mean, or turn the head off."
                )
            run = self.run_of(state.second.tokens.text)
            donors["other"] = torch.stack([step.z[0, state.second.at] for step in run.layers]).cpu()
        if "mean" in kinds:
            donors["mean"] = self.sense_axis_of(state).z.to(self.weights.dtype)
        return {kind: z.to(self.weights.device) for kind, z in donors.items()}

    def _swapped_run(self, state: SessionState) -> PatchedRun:
        """The run with the heads swapped."""
        swaps = state.question.swaps
        donors = self._donors(state, {swap.kind for swap in swaps})
        z = torch.zeros_like(donors["off"])
        is_swapped = torch.zeros(self.weights.shape[:2], dtype=torch.bool)
        for swap in swaps:
            z[swap.layer, swap.head] = donors[swap.kind][swap.layer, swap.head]
            is_swapped[swap.layer, swap.head] = True
        patch = HeadPatch(state.word.at, z, is_swapped.to(z.device))
        return run_with_patch(self.run_of(state.question.text), patch)

    def _unchanged_run(self, text: str, at: int) -> PatchedRun:
        """The run without a swap, by the same code, so that the two differ only by the swap."""
        n_layers, n_heads, _, d_head = self.weights.shape
        z = torch.zeros(n_layers, n_heads, d_head, device=self.weights.device)
        no_head = torch.zeros_like(z[..., 0], dtype=torch.bool)
        return run_with_patch(self.run_of(text), HeadPatch(at, z, no_head))

    def swap(self, question: Question) -> Iterator[Message]:
        """The coordinate and the next tokens, without and with the heads swapped."""
        state = self.state(question)
        runs = [self.unchanged_run(question.text, state.word.at), self._swapped_run(state)]
        yield {"doing": "swap", "progress": 0.6}
        result: Message = {}
        sense_axis = self._known_axis(state)
        if sense_axis is not None:
            axis = sense_axis.of_layers(swap.layer for swap in question.swaps).axis
            streams = [run.stream.cpu() for run in runs]
            result["coordinates"] = [_coordinate(axis, stream) for stream in streams]
            result["second"] = self._second_coordinate(state, axis)
            result["depth"] = axis.depth
            result["way"] = self._way(state, streams[1])
        if self.model.config.has_lm_head:
            pos = -1 if self.weights.causal else state.word.at
            with torch.inference_mode():
                logits = [forward.unembed(self.weights, run.final[pos]).cpu() for run in runs]
            ids = self._changed_most(*logits)
            result["next"] = self._probabilities(logits, ids)
        yield {"result": result}

    def write(self, question: Question) -> Iterator[Message]:
        """The continuation without and with the heads swapped, token by token, until the model ends
        its text.
        """
        state = self.state(question)
        if not (self.weights.causal and self.model.config.has_lm_head):
            raise InputError(
                f"Cannot continue the text: {self.model.name} does not write from left to right. "
                "Explore a model that does, such as tiny-senses."
            )
        runs = {"own": self.unchanged_run(question.text, state.word.at)}
        if question.swaps:
            runs["swapped"] = self._swapped_run(state)
        end = self.model.tokenizer.eos_token_id
        ids: dict[str, list[int]] = {name: [] for name in runs}
        for n_done, (name, run) in enumerate(runs.items()):
            for token in generate(self.weights, run, MAX_NEW_TOKENS, end=end):
                ids[name].append(token)
                progress = (n_done + len(ids[name]) / MAX_NEW_TOKENS) / len(runs)
                yield {"doing": "write", "progress": progress, "written": self._texts(ids)}
        yield {"result": self._texts(ids)}

    def _texts(self, ids: dict[str, list[int]]) -> dict[str, str]:
        return {name: self.model.tokenizer.decode(tokens) for name, tokens in ids.items()}

    def _require_second(self, state: SessionState) -> WordInText:
        """The word in the second sentence. Raises InputError without a second sentence."""
        if state.second is None:
            raise InputError(
                "Cannot trace two sentences: got only one. Give a second one with the same word."
            )
        return state.second

    def _read_pair(self, state: SessionState) -> tuple[PairReading, tuple[int, ...]]:
        """`read_pair` of both sentences. Raises InputError if they cannot be traced."""
        return read_pair(self.weights, state.word, self._require_second(state))

    def trace(self, question: Question) -> Iterator[Message]:
        """The causal trace of both sentences. `component layer position`"""
        state = self.state(question)
        reading, offsets = self._read_pair(state)
        effects: dict[str, Tensor] = {}
        for progress, effects in trace_steps(reading, offsets, positions.COMPONENTS):
            yield {"doing": "trace", "progress": progress}
        whole = causal_trace(state.word, self._require_second(state), offsets, effects)
        yield {"result": {"columns": whole.columns(), "arrays": {"trace": packed(whole.effects)}}}

    def score(self, question: Question) -> Iterator[Message]:
        """The scores of the followed head from one token, split into pairs of parts."""
        state = self.state(question)
        if question.follow is None:
            raise InputError("Cannot split a score: got no head. Choose one on the map.")
        view = AttentionView.of_self_attention(self.trace_of(question.text))
        at = question.pos
        if not 0 <= at < len(state.word.tokens):
            raise InputError(
                f"Cannot split a score: got token {at} of {len(state.word.tokens)}. Choose one on "
                "the page."
            )
        yield {"doing": "score", "progress": 0.1}
        yield {"result": score_row(view, *question.follow, at)}

    def trace_heads(self, question: Question) -> Iterator[Message]:
        """The causal trace of single heads at one position. `layer head`"""
        state = self.state(question)
        reading, _ = self._read_pair(state)
        at = state.word.at
        # If the model reads left to right, later tokens change nothing at the word.
        last = at if self.weights.causal else len(state.word.tokens) - 1
        if not 0 <= question.pos <= last:
            raise InputError(
                f"Cannot trace position {question.pos}: the word is at {at}. Click on a cell."
            )
        effects: dict[str, Tensor] = {}
        for progress, effects in trace_steps(reading, [question.pos - at], [positions.HEAD]):
            yield {"doing": "trace", "progress": progress}
        arrays = {"trace_heads": packed(effects[positions.HEAD][..., 0])}
        yield {"result": {"pos": question.pos, "arrays": arrays}}

    def cues(self, question: Question) -> Iterator[Message]:
        """The words of the vocabulary that move the word furthest along the axis of these two
        sentences when they are the cue in short texts, with the coordinate: 0 at the first
        sentence, 1 at the second.
        """
        state = self.state(question)
        if state.second is None:
            raise InputError(
                "Cannot try other words: got only one sentence. Give a second one with the same "
                "word."
            )
        word = state.word.text
        texts = [question.text, state.second.tokens.text]
        yield {"doing": "axis", "progress": 0.02}
        vocabulary = cue_sample.shuffled_words(self.model, seed=SEED)
        estimate = ask(self.model, word, cues=vocabulary[:N_DEPTH_CUES])
        axes = fit_texts(self.model, word, texts, estimate, seed=SEED).axes
        yield {"doing": "words", "progress": 0.2}
        sample = cue_sample.draw(self.model, word, vocabulary, depth=axes.depth)
        slots = without_beginnings(self.model, sample)
        coordinates = []
        for start in range(0, len(slots.ids), CUES_AT_ONCE):
            yield {"doing": "cues", "progress": 0.4 + 0.6 * start / len(slots.ids)}
            batch = slots.ids[start : start + CUES_AT_ONCE]
            coordinates.append(scan(self.weights, slots.templates, batch, axes, []).coordinate)
        coordinate = np.concatenate(coordinates)
        by_cue = pd.DataFrame(
            {"cue": slots.words, "seen": occur_in(texts, slots.words)}
            | {"coordinate": coordinate.mean(1)}
        )
        result = {
            "ends": strongest_cues(by_cue, N_WORDS),
            "depth": axes.depth,
            "n_cues": len(slots.cues),
            "n_frames": len(slots.frames),
            "n_vocabulary": len(vocabulary),
            "n_beginnings": slots.beginnings,
            "reliability": split_half(coordinate),
        }
        yield {"result": result}


def _spelled_otherwise(state: SessionState) -> str | None:
    """The warning if the word is cut into other tokens in the second sentence; otherwise None."""
    if state.second is None or state.second.ids == state.word.ids:
        return None
    cut = [
        "·".join(word.tokens.pieces[pos].strip() for pos in word.positions)
        for word in (state.word, state.second)
    ]
    return (
        f"The word is cut into {cut[0]} here and into {cut[1]} there: the two differ in spelling, "
        "not in meaning alone. Write the word alike in both."
    )


def _no_way(word: WordInText, second: WordInText, causal: bool) -> str:
    """Why no head can move a word with equal vectors in both sentences, and the next step."""
    cannot = f"Cannot move “{word.text}” toward another meaning"
    same = f"{cannot}: its vector is the same in both sentences"
    ids = list(word.tokens.ids)
    second_ids = list(second.tokens.ids)
    if ids == second_ids:
        return f"{same}, which are identical. Change the words that tell the meaning."
    if causal and ids[: word.at + 1] == second_ids[: second.at + 1]:
        return f"{same}, because the words that differ come after it. Put them before it."
    return f"{same}. Put the words that tell the meaning before it."


def _hold_source(by_source: Tensor, term: DecompositionEntry) -> None:
    """Stores a head's contribution from a token in `layer head pos`; ignores other terms."""
    if term.layer is not None and term.head is not None and term.pos is not None:
        by_source[term.layer, term.head, term.pos] = term.contribution or 0.0


def _coordinate(axis: Axis, stream: Tensor) -> float:
    """1/2 - M of a word: 0 at the mean of the first sense, 1 at the mean of the second.

    stream: `depth d_model`
    """
    # Without rounding, float32 errors would be visible at the ends of the axis.
    return round(0.5 - float(axis.coordinate(stream[axis.depth])), COORDINATE_DIGITS) + 0.0
