"""The study of ambiguous words: a model and sentences in, frames of numbers with their evidence out.

It chooses the words, certifies the model before anything else, measures word by word (`probe.study.word`) and collects
one tidy frame per question (`probe.study.tables`, `probe.study.examples`, `probe.study.ways`).
A Study is what the user holds: frames, never tensors.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from typing import Any

import pandas as pd

from probe.errors import InputError
from probe.model.architectures import require_single
from probe.model.check import Certificate, certify
from probe.model.load import untrained
from probe.model.model import Model
from probe.model.records import Shown
from probe.model.tokens import is_one_token
from probe.provenance import Origin
from probe.study import cost, examples, tables, ways
from probe.study.cost import StudyCost
from probe.study.material import Material, prepare
from probe.study.word import StudyOptions, measure_controls, observe_word, study_word
from probe.text import lexicon
from probe.text.sentences import Corpus, as_corpus

WORDS = ("bank", "mole", "apple")
MAX_PAIRS = StudyOptions.max_pairs
FEWEST = 99  # permutations
Progress = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class Study(Shown):
    """Frames of one study, one per question, with what made them; `probe.study.columns` describes every column."""

    model_name: str
    origin: Origin
    options: dict[str, object]
    certificate: Certificate
    frames: dict[str, pd.DataFrame]
    data_sha256: str

    def __getattr__(self, name: str) -> pd.DataFrame:
        try:
            return self.__dict__["frames"][name]
        except KeyError:
            raise AttributeError(
                f"a study has no {name!r}; its frames are {', '.join(self.__dict__.get('frames', {}))}"
            ) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.frames]

    def __repr__(self) -> str:
        words = ", ".join(map(str, self.options["words"]))  # type: ignore[call-overload]
        return f"<Study of {words} in {self.model_name}: {len(self.frames)} frames>"


def study(
    model: Model,
    words: Sequence[str] | str | None = None,
    *,
    corpus: Any = None,
    seed: int = 0,
    permutations: int = 1000,
    max_pairs: int = MAX_PAIRS,
    second: Model | None = None,
    progress: Progress | None = None,
    planned: Callable[[StudyCost], None] | None = None,
) -> Study:
    """Effects of swapping every head at each word, with tests, on the lexicon's sentences or on a corpus of your own.

    `words` defaults to bank, mole and apple, or to every word of `corpus`: what `read_sentences` gives or takes (a
    path, a DataFrame, a list of dicts or of sentences); rows that name no word are about the one that is studied.
    Raises InputError for an unknown word, too few sentences, senses or permutations, UnsupportedModel for an
    encoder-decoder, and CrossCheckError when the certificate fails: no number is reported from a model that disagrees.
    `second` is a model that reads both ways, for the lesson's sentences whose cue comes after the word. What it says is
    the frame `beside` (and its option `--beside`), for it stands beside what the studied model says. `planned` is told
    the cost before the work, and may raise.
    """
    report = progress or (lambda stage, share: None)
    _require_reads_both_ways(second)
    if permutations < FEWEST:
        raise InputError(
            f"Studying words: got permutations = {permutations}, expected at least {FEWEST}, so that a p of .01 can be "
            f"reached; leave it away for 1,000."
        )
    require_single(model.config.architecture, "a study")
    corpus = None if corpus is None else as_corpus(corpus, words)
    chosen = _choose_words(words, corpus)
    given = [_sentences_of(word, corpus, model) for word in chosen]
    materials = [prepare(model, sentences, word) for word, sentences in zip(chosen, given, strict=True)]
    options = StudyOptions(seed, max_pairs, permutations)
    late = _late(second, materials)
    if planned:
        planned(cost.plan(model, materials, options, second=late, timed=True))
    report("certificate", 0.05)
    certificate = certify(model, [material.sentences[0].text for material in materials]).require()
    results = []
    for index, material in enumerate(materials):
        report(material.word, 0.1 + 0.7 * index / len(materials))
        results.append(study_word(model, material, options))
    report("controls", 0.8)
    chance = untrained(model, seed=seed)
    measured = [measure_controls(model, chance, result, options) for result in results]
    report("examples", 0.85)
    frames = tables.frames(model, results, certificate, measured, corpus.left_out if corpus else ())
    frames["readings"] = examples.readings(model, results, frames["word_heads"], seed=seed)
    frames["ledger"] = examples.ledgers(model, results, seed=seed)
    frames["showcase"] = examples.showcase(model, results)
    report("ways", 0.9)
    frames |= ways.frames(model, results, frames["word_heads"], options)
    frames["beside"] = _read_second_model(late, options)
    made: dict[str, object] = {"words": list(chosen)} | asdict(options)
    made["sentences"] = " and ".join(dict.fromkeys(sentences.source for sentences in given))
    made |= {"beside": second.name} if second else {}
    return Study(model.name, model.origin, made, certificate, frames, _sha256([one.sha256 for one in given]))


def _require_reads_both_ways(second: Model | None) -> None:
    """Raises InputError unless the second model, if any, has one stack and reads beyond a word."""
    if second is None:
        return
    require_single(second.config.architecture, "a study")
    if second.config.causal:
        raise InputError(
            "Reading the sentences whose cue comes after the word beside the study: "
            f"{second.name} reads left to right only, expected a model that reads both ways; "
            "give tiny-senses-bidirectional or another BERT or RoBERTa."
        )


def _late(second: Model | None, studied: Sequence[Material]) -> list[tuple[Model, Material]]:
    """The second model, if any, with the lexicon's sentences of each word that stands before its cue in the lesson."""
    if second is None:
        return []
    senses = {material.word: set(material.labels) for material in studied}
    late = [item.word for item in lexicon.showcase() if item.cue_after and item.sense in senses.get(item.word, ())]
    return [(second, prepare(second, _sentences_of(word, None, second), word)) for word in dict.fromkeys(late)]


def _read_second_model(late: Sequence[tuple[Model, Material]], options: StudyOptions) -> pd.DataFrame:
    """The sentences with a late cue in another model, which is certified first."""
    if not late:
        return pd.DataFrame(columns=examples.SECOND_MODEL)
    model, materials = late[0][0], [material for _, material in late]
    certify(model, [material.sentences[0].text for material in materials]).require()
    return examples.second_model(model, [observe_word(model, material, options) for material in materials])


def _sha256(of_words: Sequence[str]) -> str:
    """The checksum of the sentences of all words: that of their one source, or of the sources' in their order."""
    distinct = list(dict.fromkeys(of_words))
    return distinct[0] if len(distinct) == 1 else hashlib.sha256("".join(distinct).encode()).hexdigest()


def _choose_words(words: Sequence[str] | str | None, corpus: Corpus | None) -> tuple[str, ...]:
    """The words to study as they are spelled where their sentences are; InputError names the known ones otherwise."""
    shipped = sorted({*lexicon.words(), *lexicon.natural_words()})
    known = tuple(dict.fromkeys(sentence.word for sentence in corpus.sentences) if corpus else shipped)
    given = (words,) if isinstance(words, str) else words or (known if corpus else WORDS)
    return tuple(dict.fromkeys(_spelled(word, known, own=corpus is not None) for word in given))


def _spelled(word: str, known: Sequence[str], *, own: bool) -> str:
    """The known word that is meant: the same, or the only one that differs in case alone."""
    alike = [name for name in known if name.casefold() == word.casefold()]
    if word in known or len(alike) == 1:
        return word if word in known else alike[0]
    near = " or ".join(map(repr, alike or get_close_matches(word.casefold(), known, n=1)))
    meant = f" (did you mean {near}?)" if near else ""
    listed = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    step = "give one of these" if own else "give one of these, or your own sentences with --sentences"
    raise InputError(f"Looking for sentences with {word!r}: there are none{meant}; known words are {listed}; {step}.")


def _sentences_of(word: str, corpus: Corpus | None, model: Model) -> Corpus:
    """The given corpus's sentences of a word; by default those that ship and suit the model.

    A model that ships learned the lexicon's grammar, whose cues must be one token of it; every other one learned from
    people, so it gets natural sentences where the word has some. Cues stand before the word or, where the model reads
    both ways, on either side.
    """
    if corpus is not None:
        chosen = tuple(sentence for sentence in corpus.sentences if sentence.word == word)
        return replace(corpus, sentences=chosen, left_out=())
    both_sides = not model.config.causal
    if word in lexicon.natural_words() and (model.origin.kind != "embedded" or word not in lexicon.words()):
        return lexicon.expand_natural(word, both_sides=both_sides)
    return lexicon.keep_one_token_cues(
        lexicon.expand(word, both_sides=both_sides), lambda piece: is_one_token(model, piece)
    )
