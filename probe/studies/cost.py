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

import psutil
import torch

from probe.errors import InputError
from probe.experiments import circuit
from probe.experiments import nouns as in_place
from probe.experiments.candidates import candidates
from probe.experiments.material import Material, SecondModel, SensePairSplits, unused
from probe.experiments.options import Options
from probe.experiments.plan import Size, Work, size_of, swap_work
from probe.experiments.table import EXPERIMENTS
from probe.model.architectures import FAMILIES
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.trace import target_states
from probe.patching.edges import EDGE_DTYPE
from probe.patching.heads import BATCH_NUMBERS, swap_heads
from probe.stats.numbers import memory_size
from probe.stats.resampling import smallest_p
from probe.text.sentences import Corpus
from probe.text.splits import ALIGNED, CrossFit, in_pairs, unmarked_pairs

PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
FRAMES_BYTES = 150 * 10**6  # tables, permutations and the page
FLOAT64_BYTES = 8  # the certificate is computed in float64
TIMED_SENTENCES = 16  # read, and swapped, to see how long a study will take
TIMED_SWAPS = 512
TIMED_RUNS = 2  # the first one also loads and allocates
TRIAL = 0.03  # of the work, that one such run takes at most
LIVE_TENSORS = 4  # as wide as the MLP's activations, held at the same time in a swap


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
    options: Options,
    second: SecondModel | None,
    given: Corpus | None = None,
) -> StudyCost:
    """The cost of a study of these words, whose sentences are held out as `splits` says, by word,
    and come from those that are `given`, if a user gave any; runs a few sentences for the time."""
    sizes = [size_of(model, material, splits[material.word], options) for material in materials]
    work = Work()
    for size in sizes:
        work = work.plus(work_of(size))
    if second is not None:
        work = work.plus(Work(forwards=sum(map(len, second.materials))))
    longest = max(materials, key=len)
    without_cues = [
        material
        for material in materials
        if all(sentence.cue is None or sentence.cue_inferred for sentence in material.sentences)
    ]
    return StudyCost(
        words=tuple(material.word for material in materials),
        forwards=work.forwards,
        swaps=work.swaps,
        held=resident(),
        extra=_extra_memory(model, materials, second, sizes),
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
            if options.nouns  # of those that ship it is no matter
            for noun, reason in candidates(model, material, options.nouns).left_out.items()
        ),
        repeated=0 if given is None else given.repeated,
    )


def work_of(size: Size) -> Work:
    """What the measurement of a word takes."""
    work = swap_work(size)
    for name in size.options.experiments:
        work = work.plus(EXPERIMENTS[name].work(size))
    return work


def _extra_memory(
    model: Model,
    materials: Sequence[Material],
    second: SecondModel | None,
    sizes: Sequence[Size],
) -> int:
    """Bytes that a study will take beside what the process holds: the states of the largest word
    twice, the largest single step, swaps, edges and frames."""
    config = model.config
    number = _bytes_per_number(model)
    states = 2 * _bytes_of_states(model, materials) * max(map(len, materials))
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
    edges = max(map(circuit.edges_of, sizes))
    traced = edges * (EDGE_DTYPE.itemsize + 8 * number * circuit.PAIRS)
    # Of each row with every noun that fits into them, and of all rows with one noun once more.
    with_nouns = 2 * in_place.STATES_BYTES if any(size.nouns for size in sizes) else 0
    largest_step = max(certificate, untrained, second_states, with_nouns)
    return states + largest_step + swapped + traced + FRAMES_BYTES


def _bytes_of_states(model: Model, materials: Sequence[Material]) -> int:
    """Bytes of what is kept of one sentence, of a word read in a text as long as the longest."""
    config = model.config
    longest = max(max(map(len, material.tokens)) for material in materials)
    per_layer = 6 * config.d_model + config.n_heads * longest
    return _bytes_per_number(model) * (config.n_layers * per_layer + 3 * config.d_model)


def _bytes_per_number(model: Model) -> int:
    return next(iter(model.weights.values())).element_size()


def seconds_of(model: Model, material: Material, work: Work, *, threads: int) -> float:
    """How long the work usually takes, from a few forward passes and swaps, in batches as a study
    runs them.

    A sentence that is read alone takes several times as long as one of a batch. Processor seconds
    of one thread, shared out to as many as are used: by the clock, and with several threads, a busy
    machine would make it far too long. Little work is timed by less, so that the trial always takes
    less than a tenth of it.
    """
    heads = model.config.heads_in_all
    texts = min(TIMED_SENTENCES, max(1, int(TRIAL * work.forwards)))
    swapped = min(texts, max(1, min(TIMED_SWAPS, int(TRIAL * work.likely_swaps)) // heads))
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        runs = [_seconds_each(model, material, texts, swapped) for _ in range(TIMED_RUNS)]
    finally:
        torch.set_num_threads(torch_threads)
    per_forward = min(read for read, _ in runs)
    per_swap = min(seconds for _, seconds in runs)
    return (work.forwards * per_forward + work.likely_swaps * per_swap) / threads


def _seconds_each(
    model: Model, material: Material, number: int, swapped: int
) -> tuple[float, float]:
    """Seconds of one forward pass and of one swap, on so many sentences of every length, in so many
    of which heads are swapped."""
    heads = model.config.heads_in_all
    by_length = sorted(range(len(material)), key=material.targets.__getitem__)
    rows = [by_length[step * len(by_length) // number] for step in range(number)]
    tokens = [material.tokens[row] for row in rows]
    targets = [material.targets[row] for row in rows]
    middle = slice((number - swapped) // 2, (number + swapped) // 2)
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
    material: Material, senses: tuple[str, str], split: CrossFit, options: Options
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
        swapped=min(options.pairs, len(split.pairs)),
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
