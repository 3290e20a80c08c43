"""What a model answers to the questions of the explorer's page, as messages of plain JSON.

An answer is an iterator of messages: any number of {"doing": ..., "progress": 0 to 1}, then
{"result": ...}; it is closed between two of them where it is no longer wanted. Traces, runs and
axes are kept, the last few of each, so that a swap costs a run from the word on and nothing else.
"""

import base64
import io
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from probe.errors import InputError, ProbeError, UnsupportedModel
from probe.explorer.page import Question, choices, parse
from probe.model import decomposition, forward
from probe.model.decomposition import residual_stream
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.records import Trace
from probe.model.tokens import TargetText, tokenize
from probe.model.trace import trace
from probe.pages.walk import write_walk
from probe.patching import positions
from probe.patching.heads import swap_sets
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
from probe.walkthrough import choose
from probe.walkthrough.frames import carried, packed, tokens
from probe.walkthrough.numbers import measure
from probe.walkthrough.scene import (
    Elsewhere,
    Place,
    Scene,
    Seen,
    read_pair,
    trace_steps,
    two_traced,
)
from probe.walkthrough.walk import answer, check_head, check_steps, walk

Message = dict[str, Any]
LONGEST = 128  # tokens: a trace holds the square of it for every head
KEPT = 8  # texts whose traces and runs are kept
WRITTEN = 20  # tokens
LISTED = 10  # likeliest tokens
LEADING = 12  # terms of the coordinate
THIS, THAT = "this meaning", "that meaning"


@dataclass(frozen=True, eq=False)
class Stand:
    """A question on its ground: the word in its text, and in the other one where that is given."""

    question: Question
    here: Place
    there: Place | None


class Explorer:
    """A model that answers questions; what it computed for the last texts is kept. For one thread."""

    def __init__(self, model: Model) -> None:
        """Raises UnsupportedModel for an encoder-decoder."""
        if model.config.start_token is not None:
            raise UnsupportedModel(
                f"Exploring {model.name}: it is an encoder-decoder, whose heads read two texts; use `probe walk TEXT "
                f"--target`, or explore a model with one stack, as tiny-choose."
            )
        self.model, self.weights = model, read_weights(model)
        self.traced: Callable[[str], Trace] = lru_cache(KEPT)(partial(trace, model))
        self.run: Callable[[str], PairCache] = lru_cache(KEPT)(self._run)
        self.known: Callable[[str, str, str | None, str], choose.SenseAxis] = lru_cache(KEPT)(
            self._known
        )
        self.unchanged: Callable[[str, int], PatchedRun] = lru_cache(KEPT)(self._unchanged)

    def answer(self, question: Question) -> Iterator[Message]:
        """The messages of an answer, the last one with the result. Raises ProbeError for what
        cannot be answered."""
        answering: Callable[[Question], Iterator[Message]] = getattr(self, question.what)
        return answering(question)

    def stand(self, question: Question) -> Stand:
        """The word in both texts.

        Raises InputError for a text that cannot be read or is too long, a word that is not there,
        and a head that the model does not have.
        """
        texts = [part for part in (question.text, question.other) if part is not None]
        for text in texts:
            if "\x00" in text:
                raise InputError(
                    "Reading the text: it holds a NUL character, which no tokenizer reads; take it out."
                )
            length = len(tokenize(self.model, text))
            if length > LONGEST:
                raise InputError(
                    f"Reading the text: got {length} tokens, expected at most {LONGEST} here; shorten it, or use "
                    f"`probe walk`."
                )
            check_steps(self.model, length)
        here = choose.place(self.model, question.text, question.word, also_in=question.other)
        for layer, head in [
            *filter(None, [question.follow]),
            *((one.layer, one.head) for one in question.swaps),
        ]:
            check_head(self.model, layer, head)
        there = (
            None if question.other is None else choose.place(self.model, question.other, here.word)
        )
        return Stand(question, here, there)

    def sentence(self, question: Question) -> Iterator[Message]:
        """What the page shows of a text: the walk's block of the followed head, and what comes
        next."""
        stand = self.stand(question)
        here, seen, other = stand.here, Seen.within(self.traced(question.text)), None
        yield {"doing": "reading", "progress": 0.4}
        if stand.there is not None:
            other = Elsewhere(Seen.within(self.traced(stand.there.tokens.text)), stand.there)
            yield {"doing": "reading", "progress": 0.6}
        asked = question.follow or (None, None)
        found = choose.differs_most(seen, here, asked, other) or choose.choose_head(
            seen, here, asked
        )
        layer, head, because = found
        scene = Scene(seen, here, layer, head, other, contrast=other is not None)
        measured = measure(scene, neighbours=False)
        yield {"doing": "reading", "progress": 0.9}
        block = carried(self.model, scene, measured)
        said = {"answer": answer(scene, measured), "word": here.word, "because": because}
        told: Message = {
            "text": question.text,
            "other": question.other,
            "caution": choose.caution(seen, here),
        }
        following = (
            None
            if seen.stream.head_output is None
            else self._likeliest(seen.stream.logits[self._reads(here)])
        )
        told |= {"block": block | said, "choices": choices(tokens(scene)), "next": following}
        yield {"result": told | {"lexicon": bool(choose.ambiguous(here.word))}}

    def _reads(self, here: Place) -> int:
        """Where what comes next is read: behind the text, or at the word where the model reads both
        ways."""
        return len(here.tokens) - 1 if self.weights.causal else here.at

    def _likeliest(self, logits: Tensor, besides: tuple[int, ...] = ()) -> list[Message]:
        """The likeliest tokens, and those of `besides`: id, text, logit, probability."""
        shares = logits.double().softmax(-1)
        top = dict.fromkeys([*logits.topk(LISTED).indices.tolist(), *besides])
        decode = self.model.tokenizer.decode
        return [
            {
                "id": one,
                "piece": decode([one]),
                "logit": float(logits[one]),
                "probability": float(shares[one]),
            }
            for one in top
        ]

    def _run(self, text: str) -> PairCache:
        """The engine's run of a text, whole and kept."""
        ids = tokenize(self.model, text).ids
        with torch.inference_mode():
            return cache_pair(self.weights, [ids], len(ids) - 1, len(self.weights.blocks))

    def _axis(self, stand: Stand) -> choose.SenseAxis:
        """The axis that is asked for, or else that of the two sentences, or with one alone the
        lexicon's.

        Raises InputError where there is neither.
        """
        question = stand.question
        kind = "lexicon" if question.axis == "lexicon" or stand.there is None else "sentences"
        return self.known(question.text, stand.here.word, question.other, kind)

    def _known(self, text: str, word: str, other: str | None, kind: str) -> choose.SenseAxis:
        here = choose.place(self.model, text, word)
        there = None if other is None else choose.place(self.model, other, word)
        if kind == "sentences" and there is not None:
            return choose.axis_between(
                self.model, here, there, (THIS, THAT), len(self.weights.blocks)
            )
        stream = None if there is None else residual_stream(self.traced(str(other)), there.at)
        found = choose.axis_of(self.model, Seen.within(self.traced(text)), here, stream)
        if found is None:
            raise InputError(
                f"Looking for an axis of “{word}”: the lexicon does not have the word, so give a second sentence in "
                f"which it means something else."
            )
        return found

    def along(self, question: Question) -> Iterator[Message]:
        """Where the word stands on the axis, and what moves it there: every head by source, every
        other component."""
        stand = self.stand(question)
        yield {"doing": "fitting the axis", "progress": 0.1}
        known, here, traced = self._axis(stand), stand.here, self.traced(question.text)
        axis = known.axis
        yield {"doing": "adding up what moves the word", "progress": 0.6}
        entries = decomposition.decompose_resid(
            traced, axis.depth, at=here.at, axis=axis, average=known.average
        )
        heads = torch.zeros(*self.weights.shape[:2], len(here.tokens))
        rows: list[Message] = []
        for entry in entries:
            moved = entry.contribution or 0.0
            if entry.layer is not None and entry.head is not None and entry.pos is not None:
                heads[entry.layer, entry.head, entry.pos] = moved
            source = None if entry.pos is None else traced.tokens.pieces[entry.pos]
            row = {
                "name": entry.component,
                "layer": entry.layer,
                "head": entry.head,
                "moved": moved,
            }
            rows.append(row | {"pos": entry.pos, "source": source})
        places = {"here": _coordinate(axis, residual_stream(traced, here.at))}
        if stand.there is not None:
            there = self.traced(stand.there.tokens.text)
            places["there"] = _coordinate(axis, residual_stream(there, stand.there.at))
        leading = sorted(rows, key=lambda row: -abs(row["moved"]))[:LEADING]
        told = {
            "senses": [axis.sense_a, axis.sense_b],
            "depth": axis.depth,
            "fitted": known.fitted,
            "places": places,
        }
        arrays = {"toward": packed(heads.sum(-1)), "toward_source": packed(heads)}
        whole = sum(row["moved"] for row in rows)
        yield {"doing": "keeping both runs", "progress": 0.8}  # so that a swap is answered at once
        self.unchanged(question.text, here.at)
        if question.other is not None:
            self.run(question.other)
        yield {
            "result": told | {"leading": leading, "arrays": arrays, "sum": whole, "gap": axis.gap}
        }

    def _donors(self, stand: Stand, kinds: set[str]) -> dict[str, Tensor]:
        """z of every head at the word, by what a head can get. `layer head d_head` each."""
        made = {
            "off": torch.zeros(
                *self.weights.shape[:2], self.weights.shape[-1], dtype=self.weights.dtype
            )
        }
        if "other" in kinds:
            if stand.there is None:
                raise InputError(
                    "Swapping a head with the other sentence's: got one sentence only; give a second one with the same "
                    "word, or take the head's mean, or turn it off."
                )
            run = self.run(stand.there.tokens.text)
            made["other"] = torch.stack([step.z[0, stand.there.at] for step in run.layers]).cpu()
        if "mean" in kinds:
            made["mean"] = self._axis(stand).z.to(self.weights.dtype)
        return {kind: z.to(self.weights.device) for kind, z in made.items()}

    def _changed(self, stand: Stand) -> PatchedRun:
        """The run with the heads swapped."""
        donors = self._donors(stand, {one.kind for one in stand.question.swaps})
        z, heads = (
            torch.zeros_like(donors["off"]),
            torch.zeros(self.weights.shape[:2], dtype=torch.bool),
        )
        for one in stand.question.swaps:
            z[one.layer, one.head], heads[one.layer, one.head] = (
                donors[one.kind][one.layer, one.head],
                True,
            )
        return run_with_patch(
            self.run(stand.question.text), HeadPatch(stand.here.at, z, heads.to(z.device))
        )

    def _unchanged(self, text: str, at: int) -> PatchedRun:
        """The run with no head swapped, by the same engine."""
        z = torch.zeros(*self.weights.shape[:2], self.weights.shape[-1], device=self.weights.device)
        return run_with_patch(
            self.run(text), HeadPatch(at, z, torch.zeros_like(z[..., 0], dtype=torch.bool))
        )

    def swap(self, question: Question) -> Iterator[Message]:
        """The coordinate and what comes next, without and with the heads swapped."""
        stand = self.stand(question)
        runs = [self.unchanged(question.text, stand.here.at), self._changed(stand)]
        yield {"doing": "swapping", "progress": 0.6}
        told: Message = {"swaps": [[one.layer, one.head, one.kind] for one in question.swaps]}
        try:
            axis = self._axis(stand).axis
        except (
            InputError
        ):  # no axis to read the coordinate on: what comes next changes all the same
            axis = None
        if axis is not None:
            told["places"] = [_coordinate(axis, run.stream.cpu()) for run in runs]
            told["depth"] = axis.depth
        if self.model.config.has_head:
            place = -1 if self.weights.causal else stand.here.at
            with torch.inference_mode():
                logits = [forward.unembed(self.weights, run.final[place]).cpu() for run in runs]
            before, after = (part.topk(LISTED).indices.tolist() for part in logits)
            both = tuple(dict.fromkeys([*before, *after]))
            told["next"] = [self._likeliest(part, both) for part in logits]
        yield {"result": told}

    def write(self, question: Question) -> Iterator[Message]:
        """What the model writes until it ends its text, without and with the heads swapped, token
        by token."""
        stand = self.stand(question)
        if not (self.weights.causal and self.model.config.has_head):
            raise InputError(f"Writing on: {self.model.name} does not write from left to right.")
        runs = {"own": self.unchanged(question.text, stand.here.at)}
        runs |= {"swapped": self._changed(stand)} if question.swaps else {}
        ids: dict[str, list[int]] = {name: [] for name in runs}
        for place, (name, run) in enumerate(runs.items()):
            for token in generate(
                self.weights, run, WRITTEN, end=self.model.tokenizer.eos_token_id
            ):
                ids[name].append(token)
                said = {part: self.model.tokenizer.decode(known) for part, known in ids.items()}
                yield {
                    "doing": "writing",
                    "progress": (place + len(ids[name]) / WRITTEN) / len(runs),
                    "written": said,
                }
        yield {"result": {name: self.model.tokenizer.decode(known) for name, known in ids.items()}}

    def effects(self, question: Question) -> Iterator[Message]:
        """How far each head, swapped by itself, moves the word along the axis: every swap
        performed."""
        stand = self.stand(question)
        yield {"doing": "swapping every head", "progress": 0.1}
        axis, donor = self._axis(stand).axis, self._donors(stand, {question.kind})[question.kind]
        along = (axis.u / axis.gap)[None].to(self.weights.dtype)
        rows = [TargetText(stand.here.tokens.ids, stand.here.at)]
        found = torch.zeros(self.weights.shape[:2])
        for layer in range(axis.depth):
            kept = torch.ones(
                self.weights.shape[1], axis.depth, self.weights.shape[1], dtype=torch.bool
            )
            kept[:, layer] = ~torch.eye(self.weights.shape[1], dtype=torch.bool)
            found[layer] = swap_sets(self.weights, rows, donor[None, : axis.depth], kept, along)[
                0, :, 0
            ]
            yield {"doing": "swapping every head", "progress": 0.1 + 0.9 * (layer + 1) / axis.depth}
        yield {
            "result": {
                "kind": question.kind,
                "depth": axis.depth,
                "arrays": {"effect": packed(found)},
            }
        }

    def _pair(self, stand: Stand) -> tuple[PairReading, tuple[int, ...]]:
        """Both sentences as `read_pair` has them. Raises InputError for sentences that cannot be
        traced."""
        if stand.there is None:
            raise InputError(
                "Tracing two sentences: got one only; give a second one with the same word."
            )
        return read_pair(self.weights, stand.here, stand.there)

    def trace(self, question: Question) -> Iterator[Message]:
        """The causal trace of both sentences. `component layer pos`"""
        stand = self.stand(question)
        read, offsets = self._pair(stand)
        for done, moved in trace_steps(read, offsets, positions.COMPONENTS):
            yield {"doing": "tracing", "progress": done}
        assert stand.there is not None
        traced = two_traced(stand.here, stand.there, offsets, moved)
        yield {"result": {"columns": traced.columns(), "arrays": {"trace": packed(traced.moved)}}}

    def trace_heads(self, question: Question) -> Iterator[Message]:
        """The same of single heads at one position: `layer head`."""
        stand = self.stand(question)
        read, _ = self._pair(stand)
        at, last = (
            stand.here.at,
            stand.here.at if self.weights.causal else len(stand.here.tokens) - 1,
        )
        if not 0 <= question.pos <= last:
            raise InputError(
                f"Tracing position {question.pos}: the word stands at {at}; click on a cell."
            )
        for done, moved in trace_steps(read, [question.pos - at], [positions.HEAD]):
            yield {"doing": "tracing", "progress": done}
        yield {
            "result": {
                "pos": question.pos,
                "arrays": {"trace_heads": packed(moved[positions.HEAD][..., 0])},
            }
        }

    def save(self, question: Question) -> Iterator[Message]:
        """The offline page of these sentences, as `probe walk` writes it, with its tables and
        manifest, in one zip."""
        self.stand(question)
        yield {"doing": "certifying and writing the page", "progress": 0.2}
        head = question.follow or (None, None)
        walked = walk(
            self.model, question.text, word=question.word, head=head, against=question.other
        )
        yield {"doing": "certifying and writing the page", "progress": 0.8}
        packed_up = io.BytesIO()
        with (
            TemporaryDirectory() as folder,
            zipfile.ZipFile(packed_up, "w", zipfile.ZIP_DEFLATED) as bundle,
        ):
            write_walk(walked, folder)
            for file in sorted(Path(folder).iterdir()):
                bundle.write(file, f"walk/{file.name}")
        yield {
            "result": {"name": "walk.zip", "data": base64.b64encode(packed_up.getvalue()).decode()}
        }


def _coordinate(axis: Axis, stream: Tensor) -> float:
    """M + 1/2 of a word: 1 where sentences of the first sense stand on average, 0 at those of the
    second. `depth d_model`
    """
    return float(axis.coordinate(stream[axis.depth])) + 0.5


def messages(explorer: Explorer, asked: object) -> Iterator[Message]:
    """The messages of an answer; what cannot be answered is one sentence, {"error": ...}."""
    try:
        yield from explorer.answer(parse(asked))
    except ProbeError as error:
        yield {"error": str(error)}
