"""The sentences of a walk, for its page, the explorer and a notebook.

Each sentence is fixed, with numbers and names filled in. What depends on more is a row of the table
that `why` returns.
"""

from typing import Any

import torch
from torch import Tensor

from probe.model.model import Model
from probe.model.tokens import Tokens
from probe.stats.numbers import decimal, percent
from probe.walks.axes import SenseAxis
from probe.walks.choose import ChosenWord, HeadChoice, count_word, is_unreadable, late_cue
from probe.walks.numbers import Quantities
from probe.walks.pair import CausalTrace
from probe.walks.scene import SAME_VECTOR, Scene, visible

ANSWER = "{head} adds {size} of the vector's length to “{word}”, {part} of it from “{source}”."
ANSWER_SMALL = "{head} adds {size} of the vector's length to “{word}”, from many tokens."
ANSWER_SWAP = (
    "Swapping {head} alone moves “{word}” {swap} of the way to its vector in the other sentence. "
    "It reads “{source}” here and “{second_source}” there."
)
ANSWER_COMPARED = (
    "{head} adds {size} of the vector's length to “{word}” here, mostly from “{source}”, and "
    "{second_size} there, mostly from “{second_source}”."
)
ANSWER_SAME = "“{word}” is the same vector in both sentences, after every layer."
ANSWER_LOGIT = "{head} alone adds {value} to the logit of “{word}”, mostly from “{source}”."

# Why a head is followed, and how far it moves the word.
REASONS = {
    "requested": "it was asked for",
    "swap": "first of {n} heads by how far its swap moves “{word}” to the other meaning: {size}",
    "sense": (
        "first of {n} heads by how far its ΔE from other content words moves “{word}” from "
        "“{sense_b}” toward its sense “{sense_a}” ({sentences} sentences of the lexicon): {size}"
    ),
    "logit": "first of {n} heads by what it adds to the logit of “{logit}”: {added}",
    "content": (
        "first of {n} heads by how far its ΔE from other content words moves “{word}”: {size} of "
        "the vector's length"
    ),
    "nothing": "first of {n} heads in order: “{word}” reads no other content word",
}

GUESSED = "“{word}” is followed because it is the last word {where}."
REPEATED = "“{word}” occurs more than once. The first occurrence is followed."

CAUTION_CUE = (
    "“{cue}” tells the sense of “{word}”, but it comes after the word, and {model} reads left to "
    "right: nothing at “{word}” can depend on it. A model that reads both ways can use it, such as "
    "tiny-senses-bidirectional."
)
CAUTION_NOTHING = (
    "No content word comes before “{word}”, and {model} reads left to right: what comes after it "
    "cannot change anything at “{word}”."
)

TRACE = (
    "Putting “{token}” in the place of “{second_token}” moves “{word}” of the other sentence "
    "{size} of the distance to this one. "
)
TRACE_ARRIVES = (
    "From layer {layer} on, replacing the vector of “{word}” alone moves it at least halfway."
)
TRACE_NEVER = "Replacing the vector of “{word}” alone never moves it halfway."

# Limits of the share of ΔE that counts as most of it. Parts of both signs can be larger than their
# sum, and sums in float32 can be slightly above 1.
MOST = 0.5
ALL = 1.05


def statements(
    model: Model,
    scene: Scene,
    quantities: Quantities,
    choice: HeadChoice,
    word: ChosenWord | None = None,
    senses: SenseAxis | None = None,
) -> dict[str, Any]:
    """The sentences of a walk by name, with two facts that its page asks for; plain JSON.

    word: the word of a single text; None if a position of a translation is followed
    senses: the axis by which the head was chosen
    """
    return {
        "answer": answer(scene, quantities, choice),
        "why": why(model, scene, quantities, choice, senses),
        "caution": caution(model, scene),
        "guessed": None if word is None else guessed(scene, word),
        "repeated": None if word is None else repeated(scene),
        "others": [] if word is None else list(word.others),
        "requested": choice.reason == "requested",
        "same_vector": parting_depth(scene, quantities) is None,
    }


def answer(scene: Scene, quantities: Quantities, choice: HeadChoice) -> str:
    """The headline of a walk: how far the head moves the word, and from which token."""
    index = scene.head_index
    source, part = largest_part(scene.view.source, quantities["share"][index, scene.at])
    values = {
        "head": f"L{scene.layer}H{scene.head}",
        "word": scene.word.text,
        "size": percent(float(quantities["added"][scene.layer, scene.head, scene.at])),
        "source": source,
        "part": percent(min(part, 1.0)),
        "swap": distance(choice.size),
    }
    if scene.compared is not None:
        second_share = quantities["second_share"][index]
        values["second_source"], _ = largest_part(scene.compared.word.tokens, second_share)
        values["second_size"] = percent(float(quantities["second_added"][index]))
        if parting_depth(scene, quantities) is None:
            return ANSWER_SAME.format(**values)
        return (ANSWER_SWAP if choice.reason == "swap" else ANSWER_COMPARED).format(**values)
    if scene.logit is not None:
        added = scene.logit.contributions[scene.layer, scene.head, scene.at]
        source, _ = largest_part(scene.view.source, added)
        values |= {"word": scene.logit.word, "source": source, "value": decimal(float(added.sum()))}
        return ANSWER_LOGIT.format(**values)
    return (ANSWER if MOST <= part <= ALL else ANSWER_SMALL).format(**values)


def largest_part(source: Tokens, parts: Tensor) -> tuple[str, float]:
    """The token with the largest absolute part of a sum, and its part divided by the sum."""
    largest = int(parts.abs().argmax())
    total = float(parts.sum())
    part = float(parts[largest]) / total if total else 0.0
    return visible(source.pieces[largest]), part


def distance(size: float) -> str:
    """How far a swap moves the word. A distance that rounds to 0 % is not 0."""
    return "less than half a percent" if percent(size) == percent(0.0) else percent(size)


def parting_depth(scene: Scene, quantities: Quantities) -> int | None:
    """The first depth at which the word's vectors of two compared sentences differ: -1 is the token
    embedding, l the stream that enters layer l; None if they never differ.
    """
    if scene.compared is None:
        return None
    # Equal vectors of two runs can differ by rounding.
    differs = (quantities["apart"] > SAME_VECTOR).nonzero()
    return int(differs[0]) - 1 if len(differs) else None


def why(
    model: Model,
    scene: Scene,
    quantities: Quantities,
    choice: HeadChoice,
    senses: SenseAxis | None,
) -> list[list[str]]:
    """The name and value of each row of the first table: why the head is followed, and more."""
    values = {
        "word": scene.word.text,
        "logit": scene.logit.word if scene.logit is not None else "",
        "n": choice.n_heads,
        "size": distance(choice.size),
        "added": decimal(choice.size),
    }
    if senses is not None:
        values |= {"sense_a": senses.axis.sense_a, "sense_b": senses.axis.sense_b}
        values["sentences"] = senses.n_sentences
    rows = [[f"why L{choice.layer}H{choice.head}", REASONS[choice.reason].format(**values)]]
    if scene.view.one_text:
        before = percent(previous_attention(scene))
        rows.append(["attention to the token before", f"{before} in this text"])
    depth = parting_depth(scene, quantities)
    if depth is not None:
        names = {-1: "token embedding", 0: "embedding with position"}
        names[scene.sizes[0]] = "after the last layer"
        rows.append(["the two vectors first differ", names.get(depth, f"entering layer {depth}")])
    return rows + _logit_rows(model, scene)


def previous_attention(scene: Scene) -> float:
    """The followed head's attention to the token before, averaged over the text; 0 in a text of
    fewer than three tokens.
    """
    pattern = scene.view.attention.pattern[scene.layer, scene.head]
    if len(pattern) < 3:
        return 0.0
    # The second token is left out, because the first one is also where heads rest.
    return float(pattern.diagonal(offset=-1)[1:].mean())


def _logit_rows(model: Model, scene: Scene) -> list[list[str]]:
    """The contributions to the logit of a word, and the largest logit of any other token."""
    target = scene.logit
    if target is None:
        return []
    decode = model.tokenizer.decode
    logits = scene.view.stream.logits[scene.at]
    # A softmax ignores a constant in all logits, so only the difference from their mean counts.
    centred = logits - logits.mean()
    without_target = centred.clone()
    without_target[target.token] = -torch.inf
    rival = int(without_target.argmax())
    first = decode([target.token]).strip() or "·"
    contributions = target.contributions[:, :, scene.at]
    n_heads = contributions[..., 0].numel()
    n_likelier = int((centred > centred[target.token]).sum())
    return [
        ["read at the token", f"“{first}”, the first of “{target.word}”"],
        [f"all {n_heads} heads of cross-attention", decimal(float(contributions.sum()))],
        ["whole logit, against the mean of all tokens", decimal(float(centred[target.token]))],
        [
            f"logit of “{decode([rival]).strip()}”, the likeliest other",
            decimal(float(centred[rival])),
        ],
        ["tokens that are likelier", str(n_likelier)],
    ]


def guessed(scene: Scene, word: ChosenWord) -> str | None:
    """That the word was only guessed; None if it was requested or is in the lexicon."""
    where = "that both sentences have" if word.shared else "of the sentence"
    return GUESSED.format(word=scene.word.text, where=where) if word.guessed else None


def repeated(scene: Scene) -> str | None:
    """Which occurrence of the word is followed; None if it occurs once in each text."""
    words = [scene.word, *([scene.compared.word] if scene.compared is not None else [])]
    if all(count_word(word.text, word.tokens.text) == 1 for word in words):
        return None
    return REPEATED.format(word=scene.word.text)


def caution(model: Model, scene: Scene) -> str | None:
    """Why nothing at the word can depend on its sense; None if something may."""
    if not scene.view.one_text or not is_unreadable(scene.word, causal=scene.view.causal):
        return None
    cue = late_cue(scene.word)
    template = CAUTION_NOTHING if cue is None else CAUTION_CUE
    return template.format(cue=cue, word=scene.word.text, model=model.name)


def travels(trace: CausalTrace) -> str:
    """Which token causes the difference of two sentences, and the layer from which on the word
    holds half of it.
    """
    entering = trace.effects[0]
    largest = int(entering[0].abs().argmax())
    token, second_token = trace.pieces[largest]
    # The last layer below half decides: an effect that comes and goes has not arrived.
    below_half = (entering[:, trace.pos.index(trace.at)] < 0.5).nonzero().flatten().tolist()
    arrival = max(below_half, default=-1) + 1
    sentence = TRACE + (TRACE_ARRIVES if arrival < len(entering) else TRACE_NEVER)
    return sentence.format(
        word=trace.word,
        token=token.strip(),
        second_token=second_token.strip(),
        size=percent(float(entering[0, largest])),
        layer=arrival,
    )
