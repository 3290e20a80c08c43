"""What a walk follows: the word and its tokens, the same word in another sentence, the head.

Without a head given, it is the one that carries most from the other content words into the word.
For a word of the lexicon that is measured along the axis of its senses, fitted on a few of the
lexicon's sentences at the read-out depth that a study would choose; for others by length: ‖Σ_j A[t,
j] V[j] W_O‖ / ‖E + Σ ΔE + b_O‖ over those tokens j that the word may look at. Marks such as [CLS],
the word itself and function words ("the", "of") are left out of the sum, because many heads rest
there and write the same whatever the text says; divided by the length of the stream after that
layer's attention, because the stream grows with depth. Heads that give most of their attention to
the first token or to marks are passed over. It is a choice of where to look first, not a finding
about the head.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.errors import InputError
from probe.evidence.material import prepare_usable
from probe.model import attention, decomposition
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.tokens import Tokens, find_word, positions_of_span, tokenize
from probe.model.trace import target_states
from probe.stats.axes import Axis, choose_depth, fit_axis, nearest_sense, separation_by_depth
from probe.stats.numbers import percent
from probe.text import lexicon
from probe.text.sentences import Sentence, forms_of
from probe.walkthrough.scene import Elsewhere, Place, Seen

PER_SENSE = 16  # sentences that an axis is fitted on, one batch for all senses


@dataclass(frozen=True, eq=False)
class SenseAxis:
    """The axis between two meanings of a word, and what each component adds halfway between them.

    `axis`: sense_a is the meaning that the word is nearest to · `average`: by component, `d_model`
    each (`probe.model.decomposition.average`) · `z: layer head d_head`, of every head at the word,
    halfway · `fitted`: on how many sentences.
    """

    axis: Axis
    average: Mapping[str, Tensor]
    z: Tensor
    fitted: int


@dataclass(frozen=True, eq=False)
class Toward:
    """What each head writes towards the sense that the word is nearest to, from `other`, the next
    nearest.

    `moved: layer head`, in fractions of the gap between the two, of what is taken from chosen
    tokens: Σ_j <A[t, j] (V[j] W_O - mean ΔE), u> / gap, as in a study's ledger. `fitted`: on how
    many sentences of the lexicon.
    """

    sense: str
    other: str
    fitted: int
    moved: Tensor


def ambiguous(text: str) -> list[tuple[int, int, str]]:
    """Where words of the lexicon stand in the text, in any of the forms that are found, in reading
    order."""
    known = dict.fromkeys((*lexicon.words(), *lexicon.natural_words()))
    return sorted((*place, word) for word in known for place in forms_of(word, text))


def toward(model: Model, seen: Seen, here: Place, sources: Tensor) -> Toward | None:
    """How far each head moves the word towards its sense by what it takes from `sources: key_pos`.

    None where the lexicon does not have the word, or the model cannot read its sentences.
    """
    known = axis_of(model, seen, here)
    if known is None:
        return None
    moved = torch.zeros(seen.weights.shape[:2], dtype=torch.float64)
    for entry in decomposition.decompose_resid(
        seen.stream, known.axis.depth, at=here.at, axis=known.axis, average=known.average
    ):
        if (
            entry.layer is not None
            and entry.head is not None
            and entry.pos is not None
            and sources[entry.pos]
        ):
            moved[entry.layer, entry.head] += entry.contribution or 0.0
    return Toward(known.axis.sense_a, known.axis.sense_b, known.fitted, moved)


def axis_of(model: Model, seen: Seen, here: Place, other: Tensor | None = None) -> SenseAxis | None:
    """The axis of the word's senses in the lexicon, from the sense that the word is nearest to, at
    the read-out depth.

    The second sense is that of the word's stream in another sentence, `other: depth d_model`, where
    it is given and another one; else the next nearest. None where the lexicon does not have the
    word, or the model cannot read its sentences.
    """
    words = [word for *_, word in ambiguous(here.word)]
    material, _ = (
        prepare_usable(model, words[0], _few(words[0], seen, here)) if words else (None, {})
    )
    if material is None or len(set(material.labels)) < 2:
        return None
    states, labels = target_states(model, material.tokens, material.targets), material.labels
    groups = [sentence.cue_word or sentence.text for sentence in material.sentences]
    depth = choose_depth(separation_by_depth(states.resid, labels, groups, seed=0))
    at_depth, vector = states.resid[:, depth], seen.stream.resid_post[depth - 1, here.at][None]
    (sense,) = nearest_sense(at_depth, labels, vector)
    (there,) = (sense,) if other is None else nearest_sense(at_depth, labels, other[depth][None])
    rest = [row for row, label in enumerate(labels) if label != sense]
    (second,) = (
        nearest_sense(at_depth[rest], [labels[row] for row in rest], vector)
        if there == sense
        else (there,)
    )
    both = [[row for row, label in enumerate(labels) if label == name] for name in (sense, second)]
    return _between(model, states, both, (sense, second), depth, fitted=len(material))


def axis_between(
    model: Model, here: Place, there: Place, names: tuple[str, str], depth: int
) -> SenseAxis:
    """The axis from the word in one sentence to the word in another at a depth: M is +1/2 here and
    -1/2 there."""
    states = target_states(model, [here.tokens, there.tokens], [here.at, there.at])
    return _between(model, states, [[0], [1]], names, depth, fitted=2)


def _between(
    model: Model,
    states: TargetStates,
    both: list[list[int]],
    names: tuple[str, str],
    depth: int,
    *,
    fitted: int,
) -> SenseAxis:
    at_depth = states.resid[:, depth]
    axis = fit_axis(at_depth[both[0]], at_depth[both[1]], names, depth)
    average = decomposition.average(read_weights(model), states, *both, depth=depth)
    z = (states.z[both[0]].mean(0) + states.z[both[1]].mean(0)) / 2
    return SenseAxis(axis, average, z, fitted)


def _few(word: str, seen: Seen, here: Place) -> Sequence[Sentence]:
    """Up to PER_SENSE sentences of each sense, spread over the lexicon's frames and cues; never the
    one that is walked.

    Those of a study; natural ones of a word that has no others.
    """
    expand = lexicon.expand if word in lexicon.words() else lexicon.expand_natural
    known = [
        row
        for row in expand(word, both_sides=not seen.causal).sentences
        if row.text != here.tokens.text
    ]
    by_sense = [
        [row for row in known if row.sense == sense]
        for sense in dict.fromkeys(row.sense for row in known)
    ]
    return [row for rows in by_sense for row in rows[:: -(-len(rows) // PER_SENSE)]]


def late_cue(here: Place) -> str | None:
    """What tells the sense of the word in a sentence that ships, where it comes after the word;
    None elsewhere."""
    behind = [(row.text, row.cue) for row in lexicon.showcase() if row.cue_after]
    for word in {word for *_, word in ambiguous(here.word)}:
        shipped = [
            *(lexicon.expand(word, both_sides=True).sentences if word in lexicon.words() else ()),
            *(
                lexicon.expand_natural(word, both_sides=True).sentences
                if word in lexicon.natural_words()
                else ()
            ),
        ]
        behind += [(row.text, row.cue) for row in shipped if row.cue_after]
    return dict(behind).get(here.tokens.text)


Head = tuple[int | None, int | None]
FRAMES = ("They had told us nothing about the {}", 'They had told us: "{}')
RESTING = (
    0.5  # a head that gives more of its attention to the first token and to marks shows little else
)
ALIKE = 1e-5  # of a vector's length: the order of a sum's terms in float32 makes as much
WORTH_SEEING = (
    0.02  # of the way from one sense to another: what is less is no reason to follow a head
)
FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a an the this that these those and or but nor if than as of in on at by to from with without for into onto
        over under near after before about between through is was were are am be been being do does did has have had
        having can could will would shall should may might must not no it its he him his she her hers they them
        their theirs we us our you your i me my who whom which what there here so very too also""",
    )
)


def require_word(word: str | None, whose: str, such: str) -> None:
    """Raises InputError for a word that is given and empty."""
    if word is not None and not word.strip():
        raise InputError(
            f"Choosing a word to follow: got an empty one, expected a word of the {whose}; give --word {such}, say."
        )


def place(model: Model, text: str, word: str | None, *, also_in: str | None = None) -> Place:
    """Where `word` stands in `text`; by default the last that the lexicon has, or else the last
    word of the text.

    `also_in`: another text that the default has to stand in, too. Raises InputError where the word
    is not there.
    """
    tokens = tokenize(model, text)
    require_word(word, "text", "bank")
    if word is None:
        written = [found.span() for found in re.finditer(r"\w+", text)]
        if not written:
            raise InputError(
                f"Choosing a word of {text!r}: got no letters or digits; give a text with a word in it."
            )
        choices = [*written, *(span[:2] for span in ambiguous(text))]
        both = [span for span in choices if also_in is None or stands(text[slice(*span)], also_in)]
        start, end = (both or choices)[-1]
    else:
        start, end = find_word(text, word)
    return Place(tokens, text[start:end], positions_of_span(tokens, start, end))


def stands(word: str, text: str) -> int:
    """How often a word stands in a text, as a whole word in any case."""
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))


def other_sentence(model: Model, here: Place, text: str | None) -> Place:
    """The same word in another sentence: in `text`, or in one that ships, as the same tokens where
    that can be had.

    Raises InputError when the word does not stand in `text`.
    """
    if text is not None:
        return place(model, text, here.word)
    known = [row.text for row in lexicon.showcase() if row.text != here.tokens.text]
    texts = [*known, *(frame.format(here.word) for frame in FRAMES)]
    places = [place(model, other, here.word) for other in texts if _usable(model, other, here.word)]
    return next(
        (one for one in places if one.ids == here.ids and _differs(model, one, here)), places[-1]
    )


def _differs(model: Model, one: Place, here: Place) -> bool:
    """Whether at most half of what the model can read around the word is the same in both."""
    around, known = (place.around(causal=model.config.causal) for place in (one, here))
    return around != known and 2 * len(around & known) <= len(around)


def _usable(model: Model, text: str, word: str) -> bool:
    """Whether the word stands in the text, and the text in the context window with the marks that
    go around it."""
    fits = (
        len(model.tokenizer(text, add_special_tokens=model.config.special_tokens)["input_ids"])
        < model.config.n_ctx
    )
    return fits and stands(word, text) > 0


def content_words(tokens: Tokens) -> Tensor:
    """Which tokens are part of a word that is no English function word; punctuation and marks are
    of none. `pos`"""
    written = re.finditer(r"\w+", tokens.text)
    words = [found.span() for found in written if found.group().casefold() not in FUNCTION_WORDS]
    content = [
        any(low < end and high > start for start, end in words) for low, high in tokens.spans
    ]
    return torch.tensor(content, dtype=torch.bool)


def moved(seen: Seen, layer: int, sources: Tensor) -> Tensor:
    """How far each head moves each token by what it takes from `sources: query_pos key_pos`.

    ‖Σ A V W_O‖ / ‖E + Σ ΔE + b_O‖, both as they are added. `-> head query_pos`
    """
    trace = seen.attention
    after = trace.resid_pre[layer] + seen.added(layer, trace.attn_out[layer])
    taken = attention.mix(trace.pattern[layer] * sources, trace.v[layer])
    written = attention.write(taken, seen.weights.blocks[layer].w_o)
    return seen.added(layer, written).norm(dim=-1) / after.norm(dim=-1)


def apart(seen: Seen, here: Place, other: Elsewhere) -> Tensor:
    """How far each head's ΔE at the word differs between two sentences.

    ‖ΔE - ΔE'‖ / half of ‖E + Σ ΔE + b_O‖ of both, all as they are added. `-> layer head`
    """
    differences = []
    for layer, block in enumerate(seen.weights.blocks):
        writes, lengths = [], []
        for side, at in ((seen, here.at), (other.seen, other.place.at)):
            trace = side.attention
            writes.append(
                side.added(layer, attention.write(trace.z[layer][:, [at]], block.w_o)[:, 0], at)
            )
            lengths.append(
                (
                    trace.resid_pre[layer, at] + side.added(layer, trace.attn_out[layer, at], at)
                ).norm()
            )
        differences.append((writes[0] - writes[1]).norm(dim=-1) / (sum(lengths) / 2))
    return torch.stack(differences)


def differs_most(
    seen: Seen, here: Place, head: Head, other: Elsewhere | None
) -> tuple[int, int, str] | None:
    """The head whose ΔE at the word differs most between two sentences; None where none does, or
    one is asked for."""
    if other is None or head[1] is not None:
        return None
    differs = apart(seen, here, other)
    layers: Sequence[int] = range(len(differs)) if head[0] is None else [head[0]]
    layer, number = _peak(differs, layers)
    size = float(differs[layer, number])
    if size <= ALIKE:
        return None
    why = (
        f"L{layer}H{number} is followed because, {_among(layers, differs.shape[1])}, what it adds to "
        f"“{here.word}” differs most between the two sentences: by {percent(size)} of the length of the vector there."
    )
    return layer, number, why


def _peak(values: Tensor, layers: Sequence[int]) -> tuple[int, int]:
    """Layer and head of the largest value in these layers. `layer head`"""
    place, head = divmod(int(values[list(layers)].argmax()), values.shape[1])
    return layers[place], head


def choose_head(
    seen: Seen, here: Place, head: Head, added: Tensor | None = None, toward: Toward | None = None
) -> tuple[int, int, str]:
    """The layer and head to follow, and why in a sentence; what was asked for is known to be there.

    With `added: layer head`, what each head adds to the logit of a word, it is the one that adds
    most; with `toward`, the one that moves the word furthest towards its sense, where any does.
    """
    layer, number = head
    if layer is not None and number is not None:
        return layer, number, f"L{layer}H{number} was asked for."
    layers: Sequence[int] = range(len(seen.attention.pattern)) if layer is None else [layer]
    if added is not None:
        best, most = _peak(added, layers)
        among = _among(layers, added.shape[1])
        return best, most, f"L{best}H{most} is followed because, {among}, it adds most to the logit"
    furthest = None if toward is None else _furthest(seen, here, layers, toward)
    return furthest or _largest(seen, here, layers)


def sources_of(seen: Seen, here: Place) -> Tensor:
    """The tokens that a head is chosen by at the word: `key_pos`."""
    return _to_take_from(seen, here)[0][here.at]


def _furthest(
    seen: Seen, here: Place, layers: Sequence[int], toward: Toward
) -> tuple[int, int, str] | None:
    """By the axis of the word's senses; None where no head moves it by what is WORTH_SEEING."""
    moved = toward.moved.masked_fill(rest(seen, here.at) > RESTING, 0.0)
    layer, head = _peak(moved, layers)
    if moved[layer, head] < WORTH_SEEING:
        return None
    way = percent(float(moved[layer, head]))
    why = (
        f"L{layer}H{head} is followed because, {_among(layers, toward.moved.shape[1])}, it moves “{here.word}” "
        f"furthest towards its sense “{toward.sense}”{_to_take_from(seen, here)[1]}: {way} of the way from "
        f"“{toward.other}”. Where the two senses lie was measured in {toward.fitted} sentences of the lexicon."
    )
    return layer, head, why


def caution(seen: Seen, here: Place) -> str | None:
    """Why nothing at the word can tell its sense in a model that reads left to right; None where
    something may."""
    if not seen.causal:
        return None
    reads = f"{seen.attention.model_name} reads left to right"
    cue = late_cue(here)
    if cue is not None:
        return (
            f"What tells the sense of “{here.word}” here, “{cue}”, comes after it, and {reads}: nothing at "
            f"“{here.word}” can depend on it. A model that reads both ways can use it, as tiny-senses-bidirectional."
        )
    if content_words(here.tokens)[: here.positions[0]].any():
        return None
    what = "Only function words stand" if any(here.around(causal=True)) else "Nothing stands"
    return f"{what} before “{here.word}”, and {reads}: what comes after it cannot change anything at “{here.word}”."


def _among(layers: Sequence[int], heads: int) -> str:
    return (
        f"of {heads * len(layers)} heads"
        if len(layers) > 1
        else f"of {heads} heads of layer {layers[0]}"
    )


def _largest(seen: Seen, here: Place, layers: Sequence[int]) -> tuple[int, int, str]:
    sources, by = _to_take_from(seen, here)
    sizes = torch.stack(
        [moved(seen, layer, sources)[:, here.at] for layer in range(len(seen.attention.pattern))]
    )
    resting = rest(seen, here.at) > RESTING
    here_resting = resting[list(layers)]
    passed = int(here_resting.sum()) if by and not here_resting.all() else 0
    layer, head = _peak(sizes.masked_fill(resting, -1.0) if passed else sizes, layers)
    why = (
        f"L{layer}H{head} is followed because, {_among(layers, sizes.shape[1])}, it moves “{here.word}” most{by}: with "
        f"a vector {percent(float(sizes[layer, head]))} as long as that of “{here.word}” after the attention of that "
        f"layer."
    )
    return layer, head, why + _passed_over(seen, here, passed)


def _passed_over(seen: Seen, here: Place, count: int) -> str:
    if not count:
        return ""
    pieces = [
        seen.source.pieces[pos] for pos in _resting_places(seen, here.at).nonzero()[:, 0].tolist()
    ]
    where = " or ".join(f"“{piece.strip()}”" for piece in dict.fromkeys(pieces))
    one = ("One head that gives", "its", "was")
    told, whose, were = one if count == 1 else (f"{count} heads that give", "their", "were")
    return (
        f" {told} more than {percent(RESTING)} of {whose} attention to {where} {were} passed over."
    )


def rest(seen: Seen, at: int) -> Tensor:
    """How much of its attention each head gives to the first token of the same text and to marks.
    `-> layer head`"""
    return seen.attention.pattern[:, :, at, _resting_places(seen, at)].sum(-1)


def _resting_places(seen: Seen, at: int) -> Tensor:
    places = seen.marks.clone()
    places[0] |= seen.alone and at > 0
    return places


def _to_take_from(seen: Seen, here: Place) -> tuple[Tensor, str]:
    """The tokens that count, and in words: the other content words, else all others, else all."""
    others = seen.others(here)
    where = "before it" if seen.causal else "around it" if seen.alone else "of the source"
    for sources, which in (
        (others & content_words(seen.source), "content words"),
        (others, "words"),
    ):
        if sources[here.at].any():
            return sources, f" by what it takes from the {which} {where}"
    return seen.allowed, ""
