"""What a cue scan puts where: the frames, and the words that are tried as the cue.

By default every word of the vocabulary is tried. A vocabulary also holds beginnings of longer
words ("estu", "nort"), and nothing marks them. So the model is asked: a token is a word if, after
the token, the model finds it more likely than not that the word has ended. A model that predicts
no next token cannot be asked, and keeps all of them; the vocabularies of such models hold whole
words.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from probe.errors import InputError
from probe.experiments.cues import Done, Template, continuation_probability, template
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.tokens import ids_after, whole_words, word_continuations
from probe.text.slots import Slotted, frames_for, read_frames, stem_of, words_of

DOING = "Scanning cues"
FEWEST_CUES = 10  # over which variances and correlations are taken
MORE_LIKELY_THAN_NOT = 0.5  # that the model continues a token: it then begins a longer word


@dataclass(frozen=True, eq=False)
class Cue:
    """A word, and its tokens in the slot of a frame."""

    word: str
    ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Slots:
    """What is put where.

    frames, templates: the frames as texts and in tokens.
    cues: the words that are tried.
    beginnings: how many tokens were left out because they begin longer words.
    not_held: words that were asked for and that the vocabulary does not hold.
    """

    frames: tuple[Slotted, ...]
    templates: list[Template]
    cues: list[Cue]
    beginnings: int = 0
    not_held: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The cues."""
        return [cue.word for cue in self.cues]

    @property
    def ids(self) -> list[tuple[int, ...]]:
        """The tokens of each cue."""
        return [cue.ids for cue in self.cues]

    @property
    def word(self) -> tuple[int, ...]:
        """The tokens of the ambiguous word."""
        return self.templates[0].word

    @property
    def before(self) -> str:
        """What the first frame has before the slot, after which all tokens are counted."""
        return self.frames[0].before

    @property
    def example(self) -> str:
        """The first frame with the first cue."""
        return self.frames[0].filled(self.cues[0].word)[0]


def ask(
    model: Model,
    word: str,
    *,
    cues: Sequence[str] | None = None,
    frames: Sequence[str] | None = None,
) -> Slots:
    """Frames and cues in the model's tokens.

    cues: every token of letters by default, beginnings of longer words among them.
    frames: those that ship by default.

    Raises InputError for frames that cannot be read, and for too few cues.
    """
    both_sides = not model.config.causal
    texts = frames_for(word, both_sides=both_sides) if frames is None else frames
    slotted = read_frames(texts, word, both_sides=both_sides)
    words = whole_words(model) if cues is None else cues
    tokens = ids_after(model, slotted[0].before, words)
    chosen = [
        Cue(cue, ids)
        for cue, ids in zip(words, tokens, strict=True)
        if ids is not None and (cues is not None or len(ids) == 1)
    ]
    _require_enough(model, chosen)
    templates = [template(model, frame, chosen[0].word) for frame in slotted]
    if len({each.word for each in templates}) > 1:
        raise InputError(
            f"{DOING}: {word!r} is not the same tokens in all frames; write it in one form, after "
            "another word."
        )
    if cues is None:
        return Slots(slotted, templates, chosen)
    held = {cue.word for cue in chosen}
    not_held = tuple(cue for cue in words if cue not in held)
    return Slots(slotted, templates, chosen, not_held=not_held)


def without_beginnings(model: Model, slots: Slots, *, done: Done | None = None) -> Slots:
    """The same without the tokens that begin longer words: those after which the model finds a
    continuation of the word more likely than not.

    Raises InputError where too few cues are left.
    """
    continuations = word_continuations(model)
    if not model.config.causal or not model.config.has_head or not continuations:
        return slots
    before = slots.templates[0].before
    p = continuation_probability(read_weights(model), before, slots.ids, continuations, done=done)
    ends = p <= MORE_LIKELY_THAN_NOT
    kept = [cue for cue, is_word in zip(slots.cues, ends, strict=True) if is_word]
    _require_enough(model, kept)
    return replace(slots, cues=kept, beginnings=len(slots.cues) - len(kept))


def occur_in(texts: Sequence[str], words: Sequence[str]) -> list[bool]:
    """Whether each word occurs in some texts, in any form."""
    stems = {stem_of(word) for text in texts for word in words_of(text)}
    return [stem_of(word) in stems for word in words]


def _require_enough(model: Model, cues: Sequence[Cue]) -> None:
    if len(cues) < FEWEST_CUES:
        raise InputError(
            f"{DOING} in {model.name}: got {len(cues)} cues that its vocabulary holds, expected "
            f"at least {FEWEST_CUES}; give a list of words (on the command line --cues FILE)."
        )
