"""The frames of a cue scan, and the words that are tried as the cue.

By default every word of the vocabulary is tried. A vocabulary also contains beginnings of longer
words ("estu", "nort"), which are not marked. The model decides: a token is a word if, after it, the
end of the word is more likely than a continuation. A model that does not predict next tokens cannot
decide, so all its tokens are kept; the vocabularies of such models contain whole words.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from probe.errors import InputError
from probe.experiments.cues import Report, Template, continuation_probability, template
from probe.model.model import Model
from probe.model.tokens import ids_after, whole_words, word_continuations
from probe.model.weights import weights_of
from probe.text.slots import Slotted, frames_for, read_frames, stem_of, words_of

DOING = "Cannot scan cues"  # as error messages begin
FEWEST_CUES = 10  # cues that variances and correlations need
MORE_LIKELY_THAN_NOT = 0.5  # probability of a continuation above which a token is a beginning


@dataclass(frozen=True, eq=False)
class Cue:
    """A word, and the ids of its tokens in the slot of a frame."""

    word: str
    ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Slots:
    """The frames, and the cues for their slots.

    frames: the frames as texts
    templates: the frames in tokens
    cues: the words that are tried
    beginnings: the number of tokens that were left out because they begin longer words
    not_held: requested words that have no tokens in the vocabulary
    """

    frames: tuple[Slotted, ...]
    templates: list[Template]
    cues: list[Cue]
    beginnings: int = 0
    not_held: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The cues as words."""
        return [cue.word for cue in self.cues]

    @property
    def ids(self) -> list[tuple[int, ...]]:
        """The token ids of each cue."""
        return [cue.ids for cue in self.cues]

    @property
    def word(self) -> tuple[int, ...]:
        """The token ids of the ambiguous word, equal in all frames."""
        return self.templates[0].word

    @property
    def before(self) -> str:
        """The text before the slot of the first frame, after which all words are tokenised."""
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

    cues: the words to try; by default every token of letters, including beginnings of longer words
    frames: texts with the word and a slot; by default the frames of the package

    Raises InputError for frames that cannot be used, for a word whose tokens differ between frames,
    and for fewer than FEWEST_CUES cues.
    """
    both_sides = not model.config.causal
    texts = frames_for(word, both_sides=both_sides) if frames is None else frames
    slotted = read_frames(texts, word, both_sides=both_sides)
    words = whole_words(model) if cues is None else cues
    tokens = ids_after(model, slotted[0].before, words)
    # Words of the vocabulary must be a single token in the slot; requested words may be several.
    usable = [
        Cue(cue, ids)
        for cue, ids in zip(words, tokens, strict=True)
        if ids is not None and (cues is not None or len(ids) == 1)
    ]
    _require_enough(model, usable)
    templates = [template(model, frame, usable[0].word) for frame in slotted]
    if len({each.word for each in templates}) > 1:
        raise InputError(
            f"{DOING}: {word!r} has different tokens in different frames. Write it in the same "
            "form in all of them, each time after another word."
        )
    if cues is None:
        return Slots(slotted, templates, usable)
    usable_words = {cue.word for cue in usable}
    not_held = tuple(cue for cue in words if cue not in usable_words)
    return Slots(slotted, templates, usable, not_held=not_held)


def without_beginnings(model: Model, slots: Slots, *, report: Report | None = None) -> Slots:
    """The frames and cues without tokens that begin longer words.

    A token begins a longer word if the model predicts a continuation with a probability above
    MORE_LIKELY_THAN_NOT. Unchanged for a model that does not predict next tokens.

    report: called with the fraction of the cues that are finished

    Raises InputError if fewer than FEWEST_CUES cues remain.
    """
    continuations = word_continuations(model)
    if not model.config.causal or not model.config.has_lm_head or not continuations:
        return slots
    before = slots.templates[0].before
    p = continuation_probability(weights_of(model), before, slots.ids, continuations, report=report)
    ends = p <= MORE_LIKELY_THAN_NOT
    whole = [cue for cue, is_word in zip(slots.cues, ends, strict=True) if is_word]
    _require_enough(model, whole)
    return replace(slots, cues=whole, beginnings=len(slots.cues) - len(whole))


def occur_in(texts: Sequence[str], words: Sequence[str]) -> list[bool]:
    """Whether each word occurs in any of the texts, in any form."""
    # Forms of a word share a stem.
    stems = {stem_of(word) for text in texts for word in words_of(text)}
    return [stem_of(word) in stems for word in words]


def _require_enough(model: Model, cues: Sequence[Cue]) -> None:
    """Raises InputError for fewer than FEWEST_CUES cues."""
    if len(cues) < FEWEST_CUES:
        raise InputError(
            f"{DOING} in {model.name}: got {len(cues)} cues that its vocabulary has, expected at "
            f"least {FEWEST_CUES}. Give a list of words (on the command line --cues FILE)."
        )
