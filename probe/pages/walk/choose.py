"""What a walk follows: the word and its tokens, the same word in another sentence, the head.

Without a head given, it is the one that carries most from the other content words into the word. For a word of the
lexicon that is measured along the axis of its senses (`probe.pages.walk.senses`), for others by length: ‖Σ_j A[t, j]
V[j] W_O‖ / ‖E + Σ ΔE + b_O‖ over those tokens j that the word may look at. Marks such as [CLS], the word itself and
function words ("the", "of") are left out of the sum, because many heads rest there and write the same whatever the text
says; divided by the length of the stream after that layer's attention, because the stream grows with depth. Heads that
give most of their attention to the first token or to marks are passed over. It is a choice of where to look first, not
a finding about the head.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from probe.errors import InputError
from probe.model import attention
from probe.model.model import Model
from probe.model.tokens import Tokens, find_word, positions_of_span, tokenize
from probe.pages.walk.scene import Place, Seen
from probe.pages.walk.senses import Toward, ambiguous, late_cue
from probe.stats.numbers import percent
from probe.text.lexicon import showcase

Head = tuple[int | None, int | None]
FRAMES = ("They had told us nothing about the {}", 'They had told us: "{}')
RESTING = 0.5  # a head that gives more of its attention to the first token and to marks shows little else
ALIKE = 1e-5  # of a vector's length: the order of a sum's terms in float32 makes as much
WORTH_SEEING = 0.02  # of the way from one sense to another: what is less is no reason to follow a head
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
    """Where `word` stands in `text`; by default the last that the lexicon has, or else the last word of the text.

    `also_in`: another text that the default has to stand in, too. Raises InputError where the word is not there.
    """
    tokens = tokenize(model, text)
    require_word(word, "text", "bank")
    if word is None:
        written = [found.span() for found in re.finditer(r"\w+", text)]
        if not written:
            raise InputError(f"Choosing a word of {text!r}: got no letters or digits; give a text with a word in it.")
        choices = [*written, *(span[:2] for span in ambiguous(text))]
        both = [span for span in choices if also_in is None or _stands(text[slice(*span)], also_in)]
        start, end = (both or choices)[-1]
    else:
        start, end = find_word(text, word)
    return Place(tokens, text[start:end], positions_of_span(tokens, start, end))


def _stands(word: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def other_sentence(model: Model, here: Place, text: str | None) -> Place:
    """The same word in another sentence: in `text`, or in one that ships, as the same tokens where that can be had.

    Raises InputError when the word does not stand in `text`.
    """
    if text is not None:
        return place(model, text, here.word)
    known = [row.text for row in showcase() if row.text != here.tokens.text]
    texts = [*known, *(frame.format(here.word) for frame in FRAMES)]
    places = [place(model, other, here.word) for other in texts if _usable(model, other, here.word)]
    return next((one for one in places if one.ids == here.ids and _differs(model, one, here)), places[-1])


def _differs(model: Model, one: Place, here: Place) -> bool:
    """Whether at most half of what the model can read around the word is the same in both."""
    around, known = (place.around(causal=model.config.causal) for place in (one, here))
    return around != known and 2 * len(around & known) <= len(around)


def _usable(model: Model, text: str, word: str) -> bool:
    """Whether the word stands in the text, and the text in the context window with the marks that go around it."""
    fits = len(model.tokenizer(text, add_special_tokens=model.config.special_tokens)["input_ids"]) < model.config.n_ctx
    return fits and _stands(word, text)


def content_words(tokens: Tokens) -> Tensor:
    """Which tokens are part of a word that is no English function word:

    `pos`. Punctuation and marks are part of none.
    """
    words = [
        found.span() for found in re.finditer(r"\w+", tokens.text) if found.group().casefold() not in FUNCTION_WORDS
    ]
    return torch.tensor(
        [any(low < end and high > start for start, end in words) for low, high in tokens.spans], dtype=torch.bool
    )


def moved(seen: Seen, layer: int, sources: Tensor) -> Tensor:
    """How far each head moves each token by what it takes from `sources: query_pos key_pos`: ‖Σ A V W_O‖ / ‖E + Σ ΔE +
    b_O‖, both as they are added.

    `-> head query_pos`
    """
    trace = seen.attention
    after = trace.resid_pre[layer] + seen.added(layer, trace.attn_out[layer])
    written = attention.write(
        attention.mix(trace.pattern[layer] * sources, trace.v[layer]), seen.weights.blocks[layer].w_o
    )
    return seen.added(layer, written).norm(dim=-1) / after.norm(dim=-1)


def apart(seen: Seen, here: Place, other: Seen, there: Place) -> Tensor:
    """How far each head's ΔE at the word differs between two sentences: ‖ΔE - ΔE'‖ / half of ‖E + Σ ΔE + b_O‖ of both,
    all as they are added.

    `-> layer head`
    """
    differences = []
    for layer, block in enumerate(seen.weights.blocks):
        writes, lengths = [], []
        for side, at in ((seen, here.at), (other, there.at)):
            trace = side.attention
            writes.append(side.added(layer, attention.write(trace.z[layer][:, [at]], block.w_o)[:, 0], at))
            lengths.append((trace.resid_pre[layer, at] + side.added(layer, trace.attn_out[layer, at], at)).norm())
        differences.append((writes[0] - writes[1]).norm(dim=-1) / (sum(lengths) / 2))
    return torch.stack(differences)


def differs_most(seen: Seen, here: Place, head: Head, differs: Tensor) -> tuple[int, int, str] | None:
    """The head whose ΔE at the word differs most between two sentences; None where none does, or one is asked for."""
    layers: Sequence[int] = range(len(differs)) if head[0] is None else [head[0]]
    place, number = divmod(int(differs[list(layers)].argmax()), differs.shape[1])
    size = float(differs[layers[place], number])
    if head[1] is not None or size <= ALIKE:
        return None
    why = (
        f"L{layers[place]}H{number} is followed because, {_among(layers, differs.shape[1])}, what it adds to "
        f"“{here.word}” differs most between the two sentences: by {percent(size)} of the length of the vector there."
    )
    return layers[place], number, why


def check_head(model: Model, layer: int | None, head: int | None) -> None:
    """Raises InputError for a layer or head that the model (its decoder, if it has one) lacks, and for a head without
    its layer.
    """
    layers, heads = model.config.n_decoder_layers or model.config.n_layers, model.config.n_heads
    for name, got, number in (("layer", layer, layers), ("head", head, heads)):
        if got is not None and not 0 <= got < number:
            raise InputError(
                f"Following {name} {got} of {model.name}: it has {number} {name}s{' per layer' * (name == 'head')}; "
                f"give --{name} from 0 to {number - 1}."
            )
    if head is not None and layer is None:
        raise InputError(
            f"Following head {head}: got a head without its layer, expected both; give --layer from 0 to {layers - 1} "
            f"too."
        )


def choose_head(
    seen: Seen, here: Place, head: Head, added: Tensor | None = None, toward: Toward | None = None
) -> tuple[int, int, str]:
    """The layer and head to follow, and why in a sentence; what was asked for was checked by `check_head`.

    With `added: layer head`, what each head adds to the logit of a word, it is the one that adds most; with `toward`,
    the one that moves the word furthest towards its sense, where any does.
    """
    layer, number = head
    if layer is not None and number is not None:
        return layer, number, f"L{layer}H{number} was asked for."
    layers: Sequence[int] = range(len(seen.attention.pattern)) if layer is None else [layer]
    if added is not None:
        return _adds_most(here, layers, added)
    furthest = None if toward is None else _furthest(seen, here, layers, toward)
    return furthest or _largest(seen, here, layers)


def sources_of(seen: Seen, here: Place) -> Tensor:
    """The tokens that a head is chosen by at the word: `key_pos`."""
    return _to_take_from(seen, here)[0][here.at]


def _furthest(seen: Seen, here: Place, layers: Sequence[int], toward: Toward) -> tuple[int, int, str] | None:
    """By the axis of the word's senses; None where no head moves it by what is WORTH_SEEING."""
    moved = toward.moved.masked_fill(rest(seen, here.at) > RESTING, 0.0)[list(layers)]
    place, head = divmod(int(moved.argmax()), moved.shape[1])
    layer, way = layers[place], percent(float(moved[place, head]))
    if moved[place, head] < WORTH_SEEING:
        return None
    why = (
        f"L{layer}H{head} is followed because, {_among(layers, toward.moved.shape[1])}, it moves “{here.word}” "
        f"furthest towards its sense “{toward.sense}”{_to_take_from(seen, here)[1]}: {way} of the way from "
        f"“{toward.other}”. Where the two senses lie was measured in {toward.fitted} sentences of the lexicon."
    )
    return layer, head, why


def caution(seen: Seen, here: Place) -> str | None:
    """Why nothing at the word can tell its sense in a model that reads left to right; None where something may."""
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


def _adds_most(here: Place, layers: Sequence[int], added: Tensor) -> tuple[int, int, str]:
    place, head = divmod(int(added[list(layers)].argmax()), added.shape[1])
    among = _among(layers, added.shape[1])
    return layers[place], head, f"L{layers[place]}H{head} is followed because, {among}, it adds most to the logit"


def _among(layers: Sequence[int], heads: int) -> str:
    return f"of {heads * len(layers)} heads" if len(layers) > 1 else f"of {heads} heads of layer {layers[0]}"


def _largest(seen: Seen, here: Place, layers: Sequence[int]) -> tuple[int, int, str]:
    sources, by = _to_take_from(seen, here)
    sizes = torch.stack([moved(seen, layer, sources)[:, here.at] for layer in layers])
    resting = rest(seen, here.at)[list(layers)] > RESTING
    passed = int(resting.sum()) if by and not resting.all() else 0
    place, head = divmod(int((sizes.masked_fill(resting, -1.0) if passed else sizes).argmax()), sizes.shape[1])
    why = (
        f"L{layers[place]}H{head} is followed because, {_among(layers, sizes.shape[1])}, it moves “{here.word}” "
        f"most{by}: "
        f"with a vector {percent(float(sizes[place, head]))} as long as that of “{here.word}” after the attention of "
        f"that layer."
    )
    return layers[place], head, why + _passed_over(seen, here, passed)


def _passed_over(seen: Seen, here: Place, count: int) -> str:
    if not count:
        return ""
    pieces = [seen.source.pieces[pos] for pos in _resting_places(seen, here.at).nonzero()[:, 0].tolist()]
    where = " or ".join(f"“{piece.strip()}”" for piece in dict.fromkeys(pieces))
    told, whose, were = (
        ("One head that gives", "its", "was") if count == 1 else (f"{count} heads that give", "their", "were")
    )
    return f" {told} more than {percent(RESTING)} of {whose} attention to {where} {were} passed over."


def rest(seen: Seen, at: int) -> Tensor:
    """How much of its attention each head gives to the first token of the same text and to marks. `-> layer head`"""
    return seen.attention.pattern[:, :, at, _resting_places(seen, at)].sum(-1)


def _resting_places(seen: Seen, at: int) -> Tensor:
    places = seen.marks.clone()
    places[0] |= seen.alone and at > 0
    return places


def _to_take_from(seen: Seen, here: Place) -> tuple[Tensor, str]:
    """The tokens that count, and in words: the other content words, where there are none all others, and where there
    are none all.
    """
    others = seen.others(here)
    content = others & content_words(seen.source)
    where = "before it" if seen.causal else "around it" if seen.alone else "of the source"
    if content[here.at].any():
        return content, f" by what it takes from the content words {where}"
    if others[here.at].any():
        return others, f" by what it takes from the words {where}"
    return seen.allowed, ""
