"""What the sentences of a study are enough for, before the work."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from probe.errors import InputError
from probe.experiments.candidates import candidates
from probe.experiments.material import Material, SensePairSplits, unused
from probe.experiments.options import Options
from probe.model.model import Model
from probe.stats.numbers import memory_size
from probe.stats.resampling import smallest_gap_p, smallest_p
from probe.text.sentences import Corpus
from probe.text.splits import ALIGNED, CrossFit, in_pairs, unmarked_pairs


@dataclass(frozen=True)
class SensePairSize:
    """How many sentences a word has in two of its senses, and what they are enough for.

    sentences: of each sense
    pairs: of sentences to test, one of each sense
    cue_words: pairs of cue words, the units of the tests
    smallest_p: the smallest p that a test of a head can give
    smallest_gap_p: the smallest p that the test of the gap can give
    aligned: whether the file pairs the sentences; otherwise pairs are drawn at random
    in_pair: how many of the sentences belong to a pair of the file
    without_cue: how many of the sentences have no marked cue, and none that their pair shows
    swapped_pairs: in how many of the pairs heads are swapped
    """

    word: str
    senses: tuple[str, str]
    sentences: tuple[int, int]
    pairs: int
    cue_words: int
    smallest_p: float
    smallest_gap_p: float
    aligned: bool = True
    in_pair: int = 0
    without_cue: int = 0
    swapped_pairs: int = 0


@dataclass(frozen=True)
class StudyPlan:
    """The sentences of a study of these words, and what they are enough for.

    sizes: how many sentences each pair of senses has
    without_cues: words without a sentence that marks its cue
    inferred_cues: for each of these words, the words in which the two sentences of a pair differ;
        they serve as cues
    left_out: word, reason and number of the sentences that are not used
    unmarked_pairs: how many sentences of a word differ from one of another sense in a single word,
        although the file does not pair them
    unusable_nouns: word, noun and reason of the unambiguous nouns that a user names and that cannot
        take the word's place
    repeated: rows of the user's sentences that repeat another row; they are read once
    """

    words: tuple[str, ...]
    sizes: tuple[SensePairSize, ...] = ()
    without_cues: tuple[str, ...] = ()
    inferred_cues: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    left_out: tuple[tuple[str, str, int], ...] = ()
    unmarked_pairs: Mapping[str, int] = field(default_factory=dict)
    unusable_nouns: tuple[tuple[str, str, str], ...] = ()
    repeated: int = 0


def plan_of(
    model: Model,
    materials: Sequence[Material],
    splits: Mapping[str, SensePairSplits],
    options: Options,
    corpus: Corpus | None = None,
) -> StudyPlan:
    """The plan of a study of these words. Nothing is run.

    splits: by word, how its sentences are held out
    corpus: the user's sentences, if there are any
    """
    # Cues that follow from pairs alone are inferred: the user has not marked them.
    without_cues = [
        material
        for material in materials
        if all(sentence.cue is None or sentence.cue_inferred for sentence in material.sentences)
    ]
    return StudyPlan(
        words=tuple(material.word for material in materials),
        sizes=tuple(
            _size(material, senses, split, options)
            for material in materials
            for senses, split in splits[material.word].items()
        ),
        without_cues=tuple(material.word for material in without_cues),
        inferred_cues={material.word: _inferred_cues(material) for material in without_cues},
        left_out=tuple(_count_left_out(materials, splits)),
        unmarked_pairs={
            material.word: alike
            for material in materials
            if (alike := unmarked_pairs(material.sentences))
        },
        unusable_nouns=tuple(
            (material.word, noun, reason)
            for material in materials
            if options.nouns  # nouns that ship may be unusable: nobody asked for them by name
            for noun, reason in candidates(model, material, options.nouns).left_out.items()
        ),
        repeated=0 if corpus is None else corpus.repeated,
    )


def require_memory(model: Model, materials: Sequence[Material]) -> None:
    """Raises InputError if a study obviously needs more memory than is free: an untrained copy of
    the weights, and the states of all sentences of a word, each as long as the longest.
    """
    config = model.config
    number = next(iter(model.weights.values())).element_size()
    weights = sum(tensor.numel() for tensor in model.weights.values())
    longest = max(len(tokens) for material in materials for tokens in material.tokens)
    # At the word: the stream, what is added to it and each head's z, and a row of each pattern.
    states = config.n_layers * (6 * config.d_model + config.n_heads * longest)
    needed = number * (weights + states * max(map(len, materials)))
    free = psutil.virtual_memory().available
    if needed > free:
        raise InputError(
            f"Cannot study {', '.join(material.word for material in materials)}: this takes at "
            f"least {memory_size(needed)} of memory, and {memory_size(free)} are free. Close other "
            "programs, or take fewer sentences or a smaller model."
        )


def _size(
    material: Material, senses: tuple[str, str], split: CrossFit, options: Options
) -> SensePairSize:
    of_first = sum(split.is_a)
    pairs = split.tested_pairs
    cue_words = len({split.units[position] for position, _ in pairs})
    return SensePairSize(
        word=material.word,
        senses=senses,
        sentences=(of_first, len(split.rows) - of_first),
        pairs=len(pairs),
        cue_words=cue_words,
        smallest_p=smallest_p(cue_words, draws=options.permutations),
        smallest_gap_p=smallest_gap_p(split),
        aligned=split.pair_design == ALIGNED,
        in_pair=len(in_pairs([material.sentences[row] for row in split.rows])),
        swapped_pairs=min(options.pairs, len(pairs)),
        without_cue=sum(material.sentences[row].cue is None for row in split.rows),
    )


def _inferred_cues(material: Material) -> tuple[tuple[str, ...], ...]:
    """The different inferred cues of the pairs of sentences, in the order of the senses."""
    cues_of_pair: dict[Hashable, dict[str, str]] = defaultdict(dict)
    for sentence in material.sentences:
        if sentence.cue_inferred and sentence.cue:
            cues_of_pair[sentence.pair][sentence.sense] = sentence.cue
    senses = [*dict.fromkeys(material.labels)]
    by_sense = [
        tuple(cues[sense] for sense in senses if sense in cues) for cues in cues_of_pair.values()
    ]
    return tuple(dict.fromkeys(by_sense))


def _count_left_out(
    materials: Sequence[Material], splits: Mapping[str, SensePairSplits]
) -> Iterable[tuple[str, str, int]]:
    """Word, reason and number of the sentences that no pair of senses uses."""
    for material in materials:
        reasons = Counter(item.reason for item in unused(material, splits[material.word].values()))
        for reason, number in reasons.items():
            yield material.word, reason, number
