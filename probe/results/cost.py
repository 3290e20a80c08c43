"""What a study will take, before the work: forward passes, swaps, memory, minutes; and what its
sentences are enough for.

Forward passes and swaps are upper bounds: where there is no gap between two senses nothing is
swapped, and a read-out below the last block leaves out the heads above it. Memory is what the
process holds now and what will come on top: the states of every word, an untrained model of the
same shape, and the largest single step.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import thread_time

import numpy as np
import psutil
import torch

from probe.errors import InputError
from probe.experiments import head_parts, noun_parts
from probe.experiments import nouns as controls
from probe.experiments.material import Material, SecondModel, SensePairSplits, unused
from probe.experiments.word import CURVE_PAIRS, JOINT_HEADS, JOINT_PAIRS, StudyOptions
from probe.model.architectures import FAMILIES
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.trace import target_states
from probe.patching import sets as head_sets
from probe.patching.edges import EDGE_DTYPE
from probe.patching.heads import BATCH_NUMBERS, swap_heads
from probe.results import circuit
from probe.stats.numbers import memory_size
from probe.stats.resampling import smallest_p
from probe.text import lexicon
from probe.text.sentences import Corpus
from probe.text.splits import ALIGNED, CrossFit, in_pairs, unmarked_pairs

PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
FRAMES_BYTES = 150 * 10**6  # tables, permutations and the page
FLOAT64_BYTES = 8  # the certificate is computed in float64
TIMED_SENTENCES = 16  # read, and swapped, to see how long a study will take
TIMED_SWAPS = 512
TIMED_RUNS = 2  # the first one also loads and allocates
LIVE_TENSORS = 4  # as wide as the MLP's activations, held at the same time in a swap
READS_PER_SENTENCE = 3  # for the study, in the untrained model, and at a later token
SINGLE_SENTENCES = 3  # of a word: those of the lesson, read again without what follows the word
SENTENCES_PER_PAIR = 2
# Four donors a pair of sentences: of the other sense and of the same one, in both directions.
DONORS_PER_PAIR = 4
DIRECTIONS = 2  # A with the parts of B, B with the parts of A


@dataclass(frozen=True)
class SensePairSize:
    """How many sentences a word has of each of two senses, in how many pairs with how many pairs of
    cue words, and the smallest p that a test on them can give.

    `aligned`: whether the file pairs them; else pairs are drawn at random, though `in_pair` of the
    sentences stand in one · `without_cue`: of the sentences, how many mark no cue and show none in
    their pair · `swapped`: in how many of the pairs heads are swapped.
    """

    word: str
    senses: tuple[str, str]
    sentences: tuple[int, int]
    pairs: int
    cue_words: int
    smallest_p: float
    aligned: bool = True
    in_pair: int = 0
    without_cue: int = 0
    swapped: int = 0


@dataclass(frozen=True)
class StudyCost:
    """The most that a study of these words takes.

    `held` and `extra`: bytes of memory that the process holds now, and that will come on top ·
    `seconds`: processor time as a study usually goes, from a measured batch of forward passes and
    of swaps · `sizes`: how many sentences each pair of senses has · `without_cues`: words of which
    no sentence marks its cue · `inferred_cues`: of these words what the two sentences of a pair
    differ in, which stands for their cues · `left_out`: word, reason and number of the sentences
    that are not used · `unmarked_pairs`: how many sentences of a word differ from one of another
    sense in a single word, while no pair says so · `unusable_nouns`: word, noun and reason of the
    nouns of one meaning that a user names and that cannot take the word's place · `repeated`: rows
    of the user's sentences that repeat another one, which is read once.
    """

    words: tuple[str, ...]
    forwards: int
    swaps: int
    held: int
    extra: int
    seconds: float | None = None
    sizes: tuple[SensePairSize, ...] = ()
    without_cues: tuple[str, ...] = ()
    inferred_cues: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    left_out: tuple[tuple[str, str, int], ...] = ()
    unmarked_pairs: Mapping[str, int] = field(default_factory=dict)
    unusable_nouns: tuple[tuple[str, str, str], ...] = ()
    repeated: int = 0

    @property
    def memory(self) -> int:
        """Bytes in all."""
        return self.held + self.extra

    def require(self, limit: int | None = None) -> "StudyCost":
        """Itself; raises InputError when it needs more memory than is free, or more in all than
        `limit` bytes."""
        free = available()
        if limit is not None and self.memory > limit:
            needed = self.memory
            reason = f"--max-memory allows {memory_size(limit)}; allow more"
        elif self.extra > free:
            needed = self.extra
            reason = f"{memory_size(free)} are free; close other programs"
        else:
            return self
        words = ", ".join(self.words)
        raise InputError(
            f"Planning the study of {words}: it would take about {memory_size(needed)} of memory "
            f"and {reason}, or take fewer words, fewer sentences or a smaller model."
        )


def cost_of(
    model: Model,
    materials: Sequence[Material],
    splits: Mapping[str, SensePairSplits],
    options: StudyOptions,
    second: SecondModel | None,
    given: Corpus | None = None,
) -> StudyCost:
    """The cost of a study of these words, whose sentences are held out as `splits` says, by word,
    and come from those that are `given`, if a user gave any; runs a few sentences for the time."""
    forwards = _count_forwards(materials, second)
    swaps = _count_swaps(model, splits, options)
    forwards += _count_forwards_beside_nouns(materials, splits, options)
    swaps += _count_swaps_beside_nouns(model, materials, splits, options)
    traced = sum(_most_traced(model, material) for material in materials)
    usually_traced = sum(_usually_traced(model, material) for material in materials)
    longest = max(materials, key=len)
    without_cues = [
        material
        for material in materials
        if all(sentence.cue is None or sentence.cue_inferred for sentence in material.sentences)
    ]
    return StudyCost(
        words=tuple(material.word for material in materials),
        forwards=forwards,
        swaps=swaps + traced,
        held=resident(),
        extra=_extra_memory(model, materials, second, options),
        seconds=_seconds(model, longest, forwards, swaps + usually_traced),
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
            if options.controls  # of those that ship it is no matter
            for noun, reason in controls.candidates(
                model, material, options.controls
            ).left_out.items()
        ),
        repeated=0 if given is None else given.repeated,
    )


def _count_forwards(materials: Sequence[Material], second: SecondModel | None) -> int:
    read = READS_PER_SENTENCE * sum(map(len, materials)) + SINGLE_SENTENCES * len(materials)
    return read + (sum(map(len, second.materials)) if second else 0)


def _count_swaps(model: Model, splits: Mapping[str, SensePairSplits], options: StudyOptions) -> int:
    """Swapped runs of all words, without those that trace edges and paths."""
    heads = model.config.heads_in_all
    return sum(_swaps_of_word(of_word.values(), heads, options) for of_word in splits.values())


def _swaps_of_word(splits: Iterable[CrossFit], heads: int, options: StudyOptions) -> int:
    """Swapped runs of one word: every head with its donors, parts of heads, stand-ins, and the sets
    of the curve."""
    swaps = 0
    for split in splits:
        pairs = min(options.max_pairs, len(split.pairs))
        pairs_in_parts = min(pairs, head_parts.MOST_PAIRS)
        pairs_with_stand_ins = min(pairs, JOINT_PAIRS)
        heads_in_parts = min(heads, head_parts.MOST_HEADS)
        swaps += heads * DONORS_PER_PAIR * pairs
        swaps += heads * DIRECTIONS * JOINT_HEADS * pairs_with_stand_ins
        swaps += heads_in_parts * DIRECTIONS * len(head_parts.KINDS) * pairs_in_parts
    # The first heads of the order, and all but these: two sets of every size.
    sets = 2 * len(head_sets.curve_sizes(heads)) + head_sets.SIZES * head_sets.RANDOM_SETS
    return swaps + DIRECTIONS * CURVE_PAIRS * sets


def _nouns_compared(options: StudyOptions) -> int:
    """The most one-meaning nouns that are put in a word's place."""
    nouns = lexicon.one_meaning_nouns() if options.controls is None else options.controls
    return min(len(nouns), controls.MOST_NOUNS)


def _count_forwards_beside_nouns(
    materials: Sequence[Material], splits: Mapping[str, SensePairSplits], options: StudyOptions
) -> int:
    """Sentences that are run up to the word, once for the gaps of nouns and once for heads and
    MLPs, for every pair of senses."""
    if not _nouns_compared(options):
        return 0
    return sum(
        SENTENCES_PER_PAIR * min(controls.MOST_PAIRS, len(split.pairs)) + len(material)
        for material in materials
        for split in splits[material.word].values()
    )


def _count_swaps_beside_nouns(
    model: Model,
    materials: Sequence[Material],
    splits: Mapping[str, SensePairSplits],
    options: StudyOptions,
) -> int:
    """The runs of other nouns in the word's place, which cost as much as a swap: one position from
    the first block on; and the swaps of heads and MLPs for some of these nouns."""
    nouns = _nouns_compared(options)
    if not nouns:
        return 0
    nouns_swapped = min(nouns, noun_parts.HEAD_NOUNS)
    layers = model.config.n_layers
    runs = 0
    for material in materials:
        for split in splits[material.word].values():
            pairs = min(options.max_pairs, len(split.pairs))
            sentences = SENTENCES_PER_PAIR * min(controls.MOST_PAIRS, len(split.pairs))
            runs += (1 + nouns) * sentences + (1 + nouns_swapped) * len(material)
            # All nouns together take as many swaps of heads as the word; MLPs are swapped for both.
            runs += (model.config.heads_in_all + 2 * layers) * DONORS_PER_PAIR * pairs
    return runs


def _most_traced(model: Model, material: Material) -> int:
    """The most partial forward passes that trace one word's edges and paths."""
    positions = _most_positions(material)
    edges = _count_edges(model, positions)
    if edges == 0:
        return 0
    return circuit.most_runs(model.config.n_layers, model.config.n_heads, positions, edges)


def _usually_traced(model: Model, material: Material) -> int:
    """Partial forward passes of a word's traces when it is read halfway up and its cue is as far
    away as in the mean.

    Without the totals of edges: how many could reach enough is seen in the traces only, and seldom
    many.
    """
    config = model.config
    if not config.causal:
        return 0
    positions = 1 + round(float(np.mean(_tokens_from_cue(material) or material.targets)))
    return circuit.most_runs(max(1, config.n_layers // 2), config.n_heads, positions, 0)


def _most_positions(material: Material) -> int:
    """The most positions from the cue to the word, or from the beginning where no cue is marked."""
    return 1 + max(_tokens_from_cue(material), default=max(material.targets))


def _tokens_from_cue(material: Material) -> list[int]:
    """Tokens from the beginning of the cue to the word, of the sentences whose cue stands before
    it."""
    return [
        target - cue[0]
        for target, cue in zip(material.targets, material.cues, strict=True)
        if cue and cue[0] < target
    ]


def _count_edges(model: Model, positions: int) -> int:
    """How many edges lie between the cue and the word; none in an encoder, which is not traced."""
    config = model.config
    if not config.causal:
        return 0
    edges = circuit.count_edges(config.n_layers, config.n_heads, positions)
    return min(edges, circuit.MOST_EDGES)


def _extra_memory(
    model: Model,
    materials: Sequence[Material],
    second: SecondModel | None,
    options: StudyOptions,
) -> int:
    """Bytes that a study will take beside what the process holds: the states of every word twice
    for the largest, the largest single step, swaps, edges and frames."""
    config = model.config
    number = _bytes_per_number(model)
    sizes = [len(material) for material in materials]
    states = _bytes_of_states(model, materials) * (sum(sizes) + max(sizes))
    weights = sum(tensor.numel() * number for tensor in model.weights.values())
    # The bridge of the untrained model holds queries, keys and values apart.
    untrained = weights + 3 * number * config.n_layers * config.d_model**2
    embedding = model.weights[FAMILIES[config.architecture].embed + ".weight"]
    certificate = 2 * FLOAT64_BYTES * embedding.numel()
    second_states = 0
    if second is not None and second.materials:
        second_states = max(
            _bytes_of_states(second.model, [material]) * len(material)
            for material in second.materials
        )
    swapped = number * LIVE_TENSORS * BATCH_NUMBERS
    edges = max(_count_edges(model, _most_positions(material)) for material in materials)
    traced = edges * (EDGE_DTYPE.itemsize + 8 * number * circuit.PAIRS)
    beside_nouns = _bytes_beside_nouns(model, max(sizes), options)
    largest_step = max(certificate, untrained, second_states, beside_nouns)
    return states + largest_step + swapped + traced + FRAMES_BYTES


def _bytes_beside_nouns(model: Model, sentences: int, options: StudyOptions) -> int:
    """Bytes of the states of one word's sentences with other nouns in its place: the stream behind
    every block, what heads and MLPs hold at the word, of the word and of every noun whose parts are
    swapped, and one of them once more."""
    nouns = min(_nouns_compared(options), noun_parts.HEAD_NOUNS)
    if not nouns:
        return 0
    config = model.config
    per_layer = 2 * config.d_model + config.d_mlp * max(1, config.n_experts) + config.d_shared
    per_run = _bytes_per_number(model) * (config.n_layers * per_layer + config.d_model)
    return (2 + nouns) * sentences * per_run


def _bytes_of_states(model: Model, materials: Sequence[Material]) -> int:
    """Bytes of what is kept of one sentence, of a word read in a text as long as the longest."""
    config = model.config
    longest = max(max(map(len, material.tokens)) for material in materials)
    per_layer = 6 * config.d_model + config.n_heads * longest
    return _bytes_per_number(model) * (config.n_layers * per_layer + 3 * config.d_model)


def _bytes_per_number(model: Model) -> int:
    return next(iter(model.weights.values())).element_size()


def _seconds(model: Model, material: Material, forwards: int, swaps: int) -> float:
    """How long so many forward passes and swaps take, from a few of each, in batches as a study
    runs them.

    A sentence that is read alone takes several times as long as one of a batch. Processor seconds
    of one thread, shared out to all that torch uses: by the clock, and with several threads, a busy
    machine would make it far too long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        runs = [_seconds_each(model, material) for _ in range(TIMED_RUNS)]
    finally:
        torch.set_num_threads(threads)
    per_forward = min(read for read, _ in runs)
    per_swap = min(swapped for _, swapped in runs)
    return (forwards * per_forward + swaps * per_swap) / threads


def _seconds_each(model: Model, material: Material) -> tuple[float, float]:
    """Seconds of one forward pass and of one swap, on sentences of every length."""
    heads = model.config.heads_in_all
    by_length = sorted(range(len(material)), key=material.targets.__getitem__)
    rows = [by_length[step * len(by_length) // TIMED_SENTENCES] for step in range(TIMED_SENTENCES)]
    tokens = [material.tokens[row] for row in rows]
    targets = [material.targets[row] for row in rows]
    swapped = min(TIMED_SENTENCES, max(1, TIMED_SWAPS // heads))
    middle = slice((TIMED_SENTENCES - swapped) // 2, (TIMED_SENTENCES + swapped) // 2)
    texts = [material.texts[row] for row in rows[middle]]
    weights = read_weights(model)
    direction = torch.ones(1, model.config.d_model)  # any will do: only the time counts
    started = thread_time()
    states = target_states(model, tokens, targets)
    per_forward = (thread_time() - started) / len(rows)
    started = thread_time()
    swap_heads(weights, texts, states.z[middle], direction)
    per_swap = (thread_time() - started) / (len(texts) * heads)
    return per_forward, per_swap


def _size(
    material: Material, senses: tuple[str, str], split: CrossFit, options: StudyOptions
) -> SensePairSize:
    of_first = sum(split.is_a)
    cue_words = len(set(split.units))
    return SensePairSize(
        word=material.word,
        senses=senses,
        sentences=(of_first, len(split.rows) - of_first),
        pairs=len(split.pairs),
        cue_words=cue_words,
        smallest_p=smallest_p(cue_words, draws=options.permutations),
        aligned=split.pair_design == ALIGNED,
        in_pair=len(in_pairs([material.sentences[row] for row in split.rows])),
        swapped=min(options.max_pairs, len(split.pairs)),
        without_cue=sum(material.sentences[row].cue is None for row in split.rows),
    )


def _inferred_cues(material: Material) -> tuple[tuple[str, ...], ...]:
    """The inferred cues of the pairs of sentences, in the order of the senses, each pair of them
    once."""
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


def parse_memory(text: str) -> int:
    """Bytes from "4GB" or "500 MB"; raises InputError for anything else, a number without a unit
    among it."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt])(?:i?b)?\s*", text, re.IGNORECASE)
    if not match or float(match[1]) == 0:
        raise InputError(
            f"Reading --max-memory: got {text!r}, expected an amount of memory with its unit; "
            "give one such as 4GB or 500MB."
        )
    return int(float(match[1]) * PREFIXES[match[2].lower()])


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(psutil.Process().memory_info().rss)


def available() -> int:
    """Bytes of memory that can be had without swapping."""
    return int(psutil.virtual_memory().available)
