"""The cost of a study, before the work: forward passes, swaps, memory, minutes; and what its
sentences are enough for.

Forward passes and swaps are upper bounds. Without a gap between two senses nothing is swapped, and
heads above the read-out layer are not swapped either. Memory is the sum of what the process uses
now and what the study adds: the states of every word, an untrained model of the same shape, and the
largest single step.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import thread_time

import psutil
import torch

from probe.errors import InputError
from probe.experiments import circuit
from probe.experiments import nouns as in_place
from probe.experiments.candidates import candidates
from probe.experiments.material import Material, SensePairSplits, unused
from probe.experiments.options import Options
from probe.experiments.plan import Size, Work, size_of, swap_work
from probe.experiments.table import every_experiment
from probe.model.architectures import FAMILIES
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.trace import target_states
from probe.patching.edges import EDGE_DTYPE
from probe.patching.heads import BATCH_NUMBERS, swap_heads
from probe.patching.kept_keys import KEPT_BYTES, bytes_before
from probe.stats.numbers import memory_size
from probe.stats.resampling import smallest_gap_p, smallest_p
from probe.text.sentences import Corpus
from probe.text.splits import ALIGNED, CrossFit, in_pairs, unmarked_pairs

PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
FRAMES_BYTES = 150 * 10**6  # tables, permutations and the page
FLOAT64_BYTES = 8  # the certificate is computed in float64
TIMED_SENTENCES = 16  # read, and swapped, to estimate the time of a study
TIMED_SWAPS = 512
TIMED_RUNS = 2  # the first run also loads and allocates
TRIAL = 0.03  # the largest share of the work that one such run takes
LIVE_TENSORS = 4  # as wide as the MLP's activations, in memory at the same time during a swap


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
class StudyCost:
    """The upper bound of what a study of these words takes.

    forwards, swaps: forward passes, and swaps of one head
    in_use: bytes of memory that the process uses now
    extra: bytes of memory that the study adds
    seconds: the usual processor time, from a measured batch of forward passes and of swaps
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
    forwards: int
    swaps: int
    in_use: int
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
        """Bytes of memory in total."""
        return self.in_use + self.extra

    def require(self, limit: int | None = None) -> "StudyCost":
        """Itself.

        Raises InputError if the study needs more memory than is free, or more than `limit` bytes in
        total.
        """
        free = available()
        if limit is not None and self.memory > limit:
            required = self.memory
            reason = f"--max-memory allows {memory_size(limit)}. Allow more"
        elif self.extra > free:
            required = self.extra
            reason = f"{memory_size(free)} are free. Close other programs"
        else:
            return self
        words = ", ".join(self.words)
        raise InputError(
            f"Cannot study {words}: it would take about {memory_size(required)} of memory, and "
            f"{reason}, or take fewer words, fewer sentences or a smaller model."
        )


def cost_of(
    model: Model,
    materials: Sequence[Material],
    splits: Mapping[str, SensePairSplits],
    options: Options,
    corpus: Corpus | None = None,
) -> StudyCost:
    """The cost of a study of these words. Runs a few sentences to measure the time.

    splits: by word, how its sentences are held out
    corpus: the user's sentences, if there are any
    """
    sizes = [size_of(model, material, splits[material.word], options) for material in materials]
    work = Work()
    for size in sizes:
        work = work.plus(work_of(size))
    longest = max(materials, key=len)
    # Cues that follow from pairs alone are inferred: the user has not marked them.
    without_cues = [
        material
        for material in materials
        if all(sentence.cue is None or sentence.cue_inferred for sentence in material.sentences)
    ]
    return StudyCost(
        words=tuple(material.word for material in materials),
        forwards=work.forwards,
        swaps=work.swaps,
        in_use=resident(),
        extra=_extra_memory(model, materials, sizes),
        seconds=seconds_of(model, longest, work, threads=torch.get_num_threads()),
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


def work_of(size: Size) -> Work:
    """The forward passes and swaps of the measurement of a word."""
    work = swap_work(size)
    for name in size.options.experiments:
        work = work.plus(every_experiment()[name].work(size))
    return work


def _extra_memory(model: Model, materials: Sequence[Material], sizes: Sequence[Size]) -> int:
    """Bytes of memory that a study adds: the states of the largest word twice, the largest single
    step, swaps, edges, kept keys and frames."""
    config = model.config
    number = _bytes_per_number(model)
    states = 2 * _bytes_of_states(model, materials) * max(map(len, materials))
    weights = sum(tensor.numel() * number for tensor in model.weights.values())
    # The bridge of the untrained model also stores the query, key and value matrices separately.
    untrained = weights + 3 * number * config.n_layers * config.d_model**2
    embedding = model.weights[FAMILIES[config.architecture].embed + ".weight"]
    certificate = 2 * FLOAT64_BYTES * embedding.numel()
    swaps = number * LIVE_TENSORS * BATCH_NUMBERS
    edges = max(map(circuit.edges_of, sizes))
    traced = edges * (EDGE_DTYPE.itemsize + 8 * number * circuit.PAIRS)
    # One batch of each row with as many nouns as fit, and one of all rows with one noun.
    with_nouns = 2 * in_place.STATES_BYTES if any(size.nouns for size in sizes) else 0
    largest_step = max(certificate, untrained, with_nouns)
    kept_keys = max(_bytes_of_kept_keys(model, size) for size in sizes)
    return states + largest_step + swaps + traced + kept_keys + FRAMES_BYTES


def _bytes_of_kept_keys(model: Model, size: Size) -> int:
    """Bytes of the keys and values of the tokens before a word, which are kept in a causal
    model."""
    if not size.causal:
        return 0
    # Twice, because another article before a noun makes another text.
    positions = 2 * size.sentences * size.tokens
    return min(KEPT_BYTES, bytes_before(read_weights(model), positions, size.layers))


def _bytes_of_states(model: Model, materials: Sequence[Material]) -> int:
    """Bytes of the states of one sentence, if it is as long as the longest."""
    config = model.config
    longest = max(max(map(len, material.tokens)) for material in materials)
    per_layer = 6 * config.d_model + config.n_heads * longest
    return _bytes_per_number(model) * (config.n_layers * per_layer + 3 * config.d_model)


def _bytes_per_number(model: Model) -> int:
    return next(iter(model.weights.values())).element_size()


def seconds_of(model: Model, material: Material, work: Work, *, threads: int) -> float:
    """The usual time of the work in seconds, from a few forward passes and swaps.

    They run in batches, as in a study: a sentence that is read alone takes several times as long as
    one of a batch. The time is measured as processor time of one thread and divided by the number
    of threads. By the clock, and with several threads, it would be far too long on a busy machine.
    The trial grows with the work, so that it always takes less than a tenth of it.
    """
    heads = model.config.heads_in_all
    texts = min(TIMED_SENTENCES, max(1, int(TRIAL * work.forwards)))
    swap_texts = min(texts, max(1, min(TIMED_SWAPS, int(TRIAL * work.likely_swaps)) // heads))
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        runs = [_seconds_each(model, material, texts, swap_texts) for _ in range(TIMED_RUNS)]
    finally:
        torch.set_num_threads(torch_threads)
    # seconds = (forwards · seconds of one + swaps · seconds of one) / threads
    per_forward = min(read for read, _ in runs)
    per_swap = min(seconds for _, seconds in runs)
    return (work.forwards * per_forward + work.likely_swaps * per_swap) / threads


def _seconds_each(
    model: Model, material: Material, number: int, swap_texts: int
) -> tuple[float, float]:
    """Seconds of one forward pass and of one swap.

    number: how many sentences are read, of all lengths
    swap_texts: in how many of them heads are swapped
    """
    heads = model.config.heads_in_all
    # Evenly spaced from the shortest sentence to the longest, counted up to the word.
    by_length = sorted(range(len(material)), key=material.targets.__getitem__)
    rows = [by_length[step * len(by_length) // number] for step in range(number)]
    tokens = [material.tokens[row] for row in rows]
    targets = [material.targets[row] for row in rows]
    # Sentences of middle length: swaps in them take as long as the average swap.
    middle = slice((number - swap_texts) // 2, (number + swap_texts) // 2)
    texts = [material.texts[row] for row in rows[middle]]
    weights = read_weights(model)
    direction = torch.ones(1, model.config.d_model)  # any direction: only the time counts
    started = thread_time()
    states = target_states(model, tokens, targets)
    per_forward = (thread_time() - started) / len(rows)
    started = thread_time()
    swap_heads(weights, texts, states.z[middle], direction)
    per_swap = (thread_time() - started) / (len(texts) * heads)
    return per_forward, per_swap


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


def parse_memory(text: str) -> int:
    """The number of bytes in "4GB" or "500 MB".

    Raises InputError for any other text, such as a number without a unit.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt])(?:i?b)?\s*", text, re.IGNORECASE)
    if not match or float(match[1]) == 0:
        raise InputError(
            f"Cannot read --max-memory: got {text!r}, expected an amount of memory with its unit. "
            "Give 4GB or 500MB, say."
        )
    return int(float(match[1]) * PREFIXES[match[2].lower()])


def resident() -> int:
    """Bytes of memory that this process uses."""
    return int(psutil.Process().memory_info().rss)


def available() -> int:
    """Bytes of memory that are free without swapping to disk."""
    return int(psutil.virtual_memory().available)
