"""The first sentence of a word's card, for a reader who has never heard of a head's name: where the meaning comes from, by what way.

It says no more than the verdicts do. Only resolvers are counted; that an earlier word gives the meaning is said where the swapped
sentences differ in that word alone, and "the words before it" where the word itself is the same vector in every sentence. Of a model
that reads both ways it is "another word" and "the words around it".
"""

from collections.abc import Sequence

import pandas as pd

from probe.charts import gap_at
from probe.numerals import counted, listed, ordinal
from probe.report import answers

ALIGNED = "aligned pairs"
FEW_LAYERS = 3


def plain(frames: answers.Frames, word: str) -> str:
    """What was shown of a word, in one sentence without names and numbers of heads."""
    pairs = frames["words"][frames["words"]["word"] == word]
    if not pairs["ranked"].any():
        return f"These sentences do not show that the vector of “{word}” in this model tells its meanings apart."
    opening = "As far as a few sentences can tell, in this model" if pairs["exploratory"].any() else "In this model"
    heads = answers.resolvers(frames, word)
    if not heads:
        return f"{opening} the vector of “{word}” changes with its meaning, but no single attention head was shown to bring that about."
    return f"{opening} the word “{word}” {_origin(frames, pairs, word)}, {_way(frames, word, heads)}{_where(frames, pairs, word)}."


def _origin(frames: answers.Frames, pairs: pd.DataFrame, word: str) -> str:
    """What gives the word its meaning, as far as the design of the study shows it."""
    if any(gap_at(frames["depth"], word, (a, b), depth=-1) != 0 for a, b in _senses(pairs)):
        return "changes its meaning with the sentence"
    causal = bool(pairs["causal"].all())
    cues = [_cue(frames["sentences"], word, sense) for sense in _senses(pairs)[0]]
    if (pairs["pair_design"] == ALIGNED).all() and all(cues):
        other = "an earlier word" if causal else "another word"
        return f"gets its meaning from {other}, such as “{cues[0]}” or “{cues[1]}”"
    return f"gets its meaning from the words {'before' if causal else 'around'} it"


def _senses(pairs: pd.DataFrame) -> list[tuple[str, str]]:
    return [(str(a), str(b)) for a, b in pairs[["sense_a", "sense_b"]].to_numpy()]


def _cue(sentences: pd.DataFrame, word: str, sense: str) -> str:
    """The first cue of this sense that effects were measured with; empty where cues are not known."""
    mine = sentences[(sentences["word"] == word) & (sentences["sense"] == sense) & (sentences["part"] == "report")]
    known = mine[mine["cue_start"].notna()].head(1).to_dict("records")
    return "".join(row["text"][int(row["cue_start"]) : int(row["cue_end"])] for row in known)


def _way(frames: answers.Frames, word: str, heads: Sequence[answers.Head]) -> str:
    """Through how many heads of which layers; in part, unless these heads together are enough."""
    found = answers.smallest_set(frames, word)
    enough = found is not None and set(found.names) <= {answers.head_name(head) for head in heads}
    number = counted(len(heads), "attention head", words=True).lower()
    return f"{'' if enough else 'in part '}by way of {number} in {_layers(frames, heads)}"


def _layers(frames: answers.Frames, heads: Sequence[answers.Head]) -> str:
    layers = sorted({int(head["layer"]) for head in heads})
    every = int(frames["heads"]["layer"].max()) + 1
    if every == 1:
        return "its only layer"
    if len(layers) == every > 2:
        return f"all of its {every} layers"
    if len(layers) > FEW_LAYERS:
        return f"{len(layers)} of its {every} layers"
    named = ["last" if layer == every - 1 else ordinal(layer + 1) for layer in layers]
    return f"the {listed(named)} of its {every} layers"


def _where(frames: answers.Frames, pairs: pd.DataFrame, word: str) -> str:
    """For how many of the word's pairs of meanings that was shown, where it is not for all."""
    rows = frames["heads"][(frames["heads"]["word"] == word) & (frames["heads"]["verdict"] == "resolver")]
    shown = len(rows[["sense_a", "sense_b"]].drop_duplicates()) if len(pairs) > 1 else 1
    return "" if shown == len(pairs) else f" (shown for {shown} of its {len(pairs)} pairs of meanings)"
