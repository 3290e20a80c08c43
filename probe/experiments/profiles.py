"""What does each head do elsewhere?

The attention of every head in natural sentences that ship and in repeated random tokens, which have
nothing to do with the word of the study. Of the top heads also the sentences in which they write
most, the positions that they move along the word's axis, and what their matrices can read and write
(`probe.experiments.directions`). A profile describes a head. It proves nothing about the word.

Every measure is a mean over rows of the pattern, one for each query:

    previous, next, first, itself   the attention to that token
    induction, duplicate            in the second copy of the random tokens: the attention to the
                                    token after the first occurrence of the query's token, and to
                                    this first occurrence
    entropy                         -Σ A log A / log n, where the query can see n tokens
    distance                        Σ A |query_pos - key_pos|

Rows with fewer than FEWEST_SEEN visible tokens are left out: whatever the head does, its attention
to the first and to the previous token is large there.

Sources: Olsson et al. 2022 (induction heads); TransformerLens (head_detector).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probe.errors import InputError
from probe.experiments.columns import Column, Table, as_elsewhere, dataset, rows, tables_of
from probe.experiments.directions import directions_as_tokens
from probe.experiments.material import sentences_of
from probe.experiments.run import WordRun
from probe.model import attention, blocks
from probe.model.blocks import PositionTerms
from probe.model.decomposition import through_norm
from probe.model.load import ModelSource, load
from probe.model.model import Model
from probe.model.tokens import Tokens, batch_by_length, positions_of_span, tokens_of
from probe.model.variants import Step, run_texts
from probe.model.weights import Weights, read_stacks
from probe.patching.sets import HeadIndex
from probe.stats import resampling
from probe.stats.axes import Axis
from probe.text import lexicon
from probe.text.sentences import Sentence
from probe.text.spans import WORD

if TYPE_CHECKING:
    import xarray as xr

ORDER = 125
NEEDS = ()
ANSWERS = False
SECONDS = 18.0
PER_WORD = 6  # natural sentences of each word of the lexicon, each with another frame
RANDOM_TEXTS = 40
PERIOD = 32  # random tokens, which each random text has twice
FEWEST_SEEN = 4  # tokens that the query of a row can see
MOST_ROWS = 64  # texts that are run together
SHOWN = 10  # sentences with the longest writes, and as many with the largest along the axis
# A head has a name if at least this share of its attention is on the token that the name says.
NAMED_FROM = 0.5
NATURAL, REPEATED = "natural", "repeated"
IN_NATURAL, IN_REPEATED = "natural sentences", "repeated random tokens"
KINDS = (
    ("a previous-token", "previous", NATURAL, IN_NATURAL),
    ("a next-token", "next", NATURAL, IN_NATURAL),
    ("an induction", "induction", REPEATED, IN_REPEATED),
    ("a duplicate-token", "duplicate", REPEATED, IN_REPEATED),
)
MEASURES = ("previous", "next", "first", "itself", "induction", "duplicate", "entropy", "distance")
CUE_SHARES = ("cue_share", "even_share")
# How a sentence is chosen: for the length of the write, or for its part along the axis.
LENGTH, ALONG = "length", "axis"
# Words that say nothing by themselves. All other words of a sentence are content words.
FUNCTION_WORDS = frozenset(
    WORD.findall(
        "a an the this that these those my your his her its our their i you he she it we they "
        "me him us them one ones who whom whose which what when where why how and or but if "
        "because as than so nor while until since though although in on at by for with about "
        "from to into onto over under after before between through during without within "
        "along across behind beyond near up down off out of away again then there here all "
        "any both each few more most other some such no not only own same too very just even "
        "ever never always can could may might must shall should will would do does did done "
        "doing have has had having be am is are was were been being s t d ll m re ve"
    )
)


class Text(NamedTuple):
    """A text in which heads are looked at, as tokens. All fields but the first are of sentences.

    tokens: None for random tokens
    word: the position of the ambiguous word
    cue: the positions of its cue
    content: the positions of the cue and of all other content words that the word can read
    words: the number of these content words, the cue included
    """

    ids: tuple[int, ...]
    tokens: Tokens | None = None
    word: int | None = None
    cue: tuple[int, ...] = ()
    content: tuple[int, ...] = ()
    words: int = 0


class RandomTexts(NamedTuple):
    """Texts of random tokens, each twice: the tokens before `lead` are special, the next `period`
    are random, and the next `period` are the same again.
    """

    texts: list[Text]
    lead: int
    period: int


# --- the texts ------------------------------------------------------------------------------------


def natural_texts(model: Model) -> list[Text]:
    """PER_WORD sentences of each word of the lexicon, with different frames and the senses in turn,
    without those that are too long for the model.
    """
    words = lexicon.words() if model.origin.kind == "embedded" else lexicon.natural_words()
    texts = []
    for word in words:
        by_frame: defaultdict[str | None, list[Sentence]] = defaultdict(list)
        for sentence in sentences_of(word, None, model).sentences:
            by_frame[sentence.frame].append(sentence)
        frames = list(by_frame.values())
        spread = np.linspace(0, len(frames) - 1, min(PER_WORD, len(frames))).round().astype(int)
        for number, frame in enumerate(spread):
            # Sentences of different senses alternate, and so another step than 1 or 2.
            of_frame = frames[frame]
            text = natural_text(model, of_frame[(3 * number) % len(of_frame)])
            texts += [] if text is None else [text]
    return texts


def natural_text(model: Model, sentence: Sentence) -> Text | None:
    """A sentence with its word and cue; None if it is too long for the model."""
    try:
        tokens = tokens_of(model, sentence.text)
    except InputError:
        return None
    word = positions_of_span(tokens, sentence.start, sentence.end)
    assert sentence.cue_start is not None and sentence.cue_end is not None
    cue = positions_of_span(tokens, sentence.cue_start, sentence.cue_end)
    spans = {
        found.span()
        for found in WORD.finditer(sentence.text)
        if found.group().lower() not in FUNCTION_WORDS
    }
    of_words = [positions_of_span(tokens, *span) for span in spans]
    of_words = [
        positions
        for positions in of_words
        if not {*positions} & {*word, *cue}
        and (positions[-1] < word[-1] or not model.config.causal)
    ]
    content = sorted({*cue}.union(*of_words))
    return Text(tokens.ids, tokens, word[-1], tuple(cue), tuple(content), 1 + len(of_words))


def random_texts(model: Model, *, seed: int) -> RandomTexts:
    """RANDOM_TEXTS texts of PERIOD different random tokens, twice, between the special tokens that
    the model adds to every text. Shorter ones if its context window or vocabulary is small.
    """
    tokens = tokens_of(model, "a")
    # What the model adds to a text has an empty span.
    inside = [pos for pos, (start, end) in enumerate(tokens.spans) if start < end]
    before, after = tokens.ids[: inside[0]], tokens.ids[inside[-1] + 1 :]
    size = min(len(model.tokenizer), model.config.d_vocab)
    special = {*before, *after, *model.tokenizer.all_special_ids}
    special |= {*model.tokenizer.added_tokens_decoder}
    ordinary = [token for token in range(size) if token not in special]
    room = (model.config.n_ctx - len(before) - len(after)) // 2
    period = min(PERIOD, room, len(ordinary))
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(RANDOM_TEXTS):
        drawn = tuple(rng.choice(ordinary, size=period, replace=False).tolist())
        texts.append(Text((*before, *drawn, *drawn, *after)))
    return RandomTexts(texts, len(before), period)


# --- the profile ----------------------------------------------------------------------------------


class Seen(NamedTuple):
    """A layer of some texts of equal length.

    members: the numbers of the texts
    pattern: `text head query_pos key_pos`
    visible: whether a query can see a key. `query_pos key_pos`
    """

    layer: int
    members: list[int]
    pattern: Tensor
    visible: Tensor
    step: Step


def patterns(weights: Weights, texts: Sequence[Text], depth: int) -> Iterator[Seen]:
    """The pattern of every layer with heads, for texts of one length after the other.

    depth: how many blocks are run
    """
    lengths = [len(text.ids) for text in texts]
    for members in batch_by_length(lengths, most_rows=MOST_ROWS):
        n = lengths[members[0]]
        terms = blocks.position_terms(weights, n)
        for step in run_texts(weights, [texts[row].ids for row in members], depth, terms):
            if step.block.mixer is None:
                pattern, visible = pattern_of(weights, step, terms, n)
                yield Seen(step.layer, members, pattern, visible, step)


def pattern_of(weights: Weights, step: Step, terms: PositionTerms, n: int) -> tuple[Tensor, Tensor]:
    """The pattern of a layer in whole texts of n tokens, and what a query can see.

    Shape: `text head query_pos key_pos, query_pos key_pos`
    """
    q, k = step.projected.q[:, 0], step.projected.k[:, 0]
    qk = attention.matches(q, attention.repeat_kv(k, q.shape[1]))
    bias = blocks.bias_and_mask(weights, step.block, terms, n, n)
    open_scores = torch.zeros(n, n, device=weights.device)
    visible = blocks.mask(weights, open_scores, local=step.block.local).isfinite()
    return blocks.pattern(weights, step.block, qk, bias), visible


def measures(pattern: Tensor, visible: Tensor, *, lead: int = 0, period: int = 0) -> Tensor:
    """MEASURES of every row of a pattern, in float64; NaN where a row has none.

    Shape: `... query_pos key_pos, query_pos key_pos -> measure ... query_pos`

    lead, period: of repeated tokens; a period of 0 means that nothing is repeated
    """
    pattern = pattern.double()
    n = pattern.shape[-1]
    seen = visible.sum(-1)
    place = torch.arange(n, device=pattern.device)

    def to(offset: int, first: int = 0, last: int = n) -> Tensor:
        """The attention to the token at an offset, of the queries from `first` up to `last`."""
        inside = (place + offset >= 0) & (place + offset < n) & (place >= first) & (place < last)
        keys = (place + offset).clamp(0, n - 1)
        values = pattern.gather(-1, keys.expand(pattern.shape[:-1])[..., None])[..., 0]
        return values.where(inside, math.nan)

    # Only the second copy has something to repeat.
    second = (lead + period, lead + 2 * period if period else 0)
    apart = (place[:, None] - place).abs().double()
    values = torch.stack(
        [
            to(-1),
            to(1).where(visible.diagonal(1).any(), math.nan),  # nothing later is visible
            pattern[..., 0],
            to(0),
            to(1 - period, *second),
            to(-period, *second),
            torch.special.entr(pattern).sum(-1) / seen.double().log(),
            (pattern * apart).sum(-1),
        ]
    )
    return values.where(seen >= FEWEST_SEEN, math.nan)


def profile_of(
    weights: Weights,
    natural: Sequence[Text],
    repeated: RandomTexts,
    watch: Callable[[Seen], None] | None = None,
) -> "xr.Dataset":
    """MEASURES of every head in both kinds of texts, and CUE_SHARES in natural ones.
    `texts layer head`

    watch: called with every layer of the natural texts

    cue_share = Σ A(cue) / Σ A(content words), over the rows of the words that the texts are about
    even_share = Σ [A(content words) / number of content words] / Σ A(content words)
    """
    layers, heads, *_ = weights.shape
    profile = np.full((len(MEASURES) + len(CUE_SHARES), 2, layers, heads), np.nan)
    repeat = {"lead": repeated.lead, "period": repeated.period}
    for number, (texts, how) in enumerate(((natural, {}), (repeated.texts, repeat))):
        of_rows: defaultdict[int, list[Tensor]] = defaultdict(list)
        at_words: defaultdict[int, list[Tensor]] = defaultdict(list)
        for seen in patterns(weights, texts, layers):
            values = measures(seen.pattern, seen.visible, **how)
            # measure head row, with the rows of all texts one after the other
            of_rows[seen.layer].append(values.transpose(1, 2).flatten(2))
            at_words[seen.layer].append(_at_words(seen, texts))
            if watch is not None and texts is natural:
                watch(seen)
        for layer, parts in of_rows.items():
            means = torch.cat(parts, dim=-1).nanmean(-1)
            on_cue, on_content, even = torch.cat(at_words[layer]).sum(0)
            shares = torch.stack([on_cue, even]) / on_content
            profile[:, number, layer] = torch.cat([means, shares]).cpu().numpy()
    names = (*MEASURES, *CUE_SHARES)
    return dataset(
        TABLES,
        {name: ("texts layer head", of_name) for name, of_name in zip(names, profile, strict=True)},
        coordinates={
            "texts": ("texts", [NATURAL, REPEATED]),
            "layer": ("layer", range(layers)),
            "head": ("head", range(heads)),
        },
    )


def _at_words(seen: Seen, texts: Sequence[Text]) -> Tensor:
    """The attention of each ambiguous word to its cue and to all content words, and this attention
    divided by their number. `text attention head`; no texts without a word
    """
    heads = seen.pattern.shape[1]
    rows = [torch.zeros(0, 3, heads, dtype=torch.float64, device=seen.pattern.device)]
    for number, pattern in zip(seen.members, seen.pattern.double(), strict=True):
        text = texts[number]
        if text.word is not None:
            to_cue = pattern[:, text.word, list(text.cue)].sum(-1)
            to_content = pattern[:, text.word, list(text.content)].sum(-1)
            rows.append(torch.stack([to_cue, to_content, to_content / text.words])[None])
    return torch.cat(rows)


# Of the last model, by its key, for all words of a study: the natural sentences and the profile.
_PROFILES: dict[str, "tuple[list[Text], xr.Dataset]"] = {}


def profile(
    model: Model, *, seed: int, writes: "HeadWrites | None" = None
) -> "tuple[list[Text], xr.Dataset]":
    """The natural sentences that ship, and `profile_of` a model in them and in random tokens.

    writes: of some heads, which are read in the same run of the natural sentences
    """
    key = f"{model.key_with_tokenizer} {seed}"
    if key not in _PROFILES:
        natural, repeated = natural_texts(model), random_texts(model, seed=seed)
        watch = None if writes is None else writes.watch
        of_model = profile_of(stack_of(model), natural, repeated, watch)
        _PROFILES.clear()
        _PROFILES[key] = natural, of_model
    elif writes is not None:
        writes.run(_PROFILES[key][0])
    return _PROFILES[key]


def stack_of(model: Model) -> Weights:
    """The weights of the model; of an encoder-decoder, those of its encoder."""
    stacks = read_stacks(model.weights, model.config, model.modules)
    return stacks.get("") or stacks["encoder"]


def profiles(model: ModelSource, *, seed: int = 0) -> pd.DataFrame:
    """What every head does in general: a row for each kind of texts ("natural", "repeated"), layer
    and head, with the columns of the table `profiles`.

    model: as for `load`; of an encoder-decoder, the heads of its encoder, because its other heads
        need a translation of the sentences
    seed: of the random tokens

    Example:
        >>> heads = probe.profiles("tiny-senses")
        >>> heads[heads["texts"] == "natural"].nlargest(1, "previous")[["layer", "head"]].shape
        (1, 2)
    """
    _, of_model = profile(load(model), seed=seed)
    frame = of_model.to_dataframe().reset_index()
    return frame.dropna(subset="first").reset_index(drop=True)


# --- where the top heads write most ---------------------------------------------------------------


class Written(NamedTuple):
    """What a head writes in one text.

    length: of its write, as a fraction of the length of the stream; NaN where the position sees
        fewer than FEWEST_SEEN tokens. `pos`
    along: along the word's axis, in fractions of the gap. `pos`
    pattern: `query_pos key_pos`
    """

    length: Tensor
    along: Tensor
    pattern: Tensor


class HeadWrites:
    """What some heads write at every position of every text, by the number of the text
    (`of_texts`), read layer by layer.

    axes: by head, of the word after the layer of the head or later
    """

    def __init__(self, weights: Weights, axes: Mapping[HeadIndex, Axis]) -> None:
        self.weights = weights
        self.axes = axes
        self.of_texts: dict[HeadIndex, dict[int, Written]] = {head: {} for head in axes}
        after_sum = weights.config.family.norm_after_sum
        # Without norms of the sum, nothing after its own block changes what a head wrote.
        self._depths = {head: axes[head].depth if after_sum else head[0] + 1 for head in axes}
        self._vectors: dict[HeadIndex, Tensor] = {}  # text pos d_model, as they arrive
        # Length and pattern in the head's own layer.
        self._starts: dict[HeadIndex, tuple[Tensor, Tensor]] = {}

    def run(self, texts: Sequence[Text]) -> None:
        """Run the texts as far as the writes need it."""
        for seen in patterns(self.weights, texts, max(self._depths.values(), default=0)):
            self.watch(seen)

    def watch(self, seen: Seen) -> None:
        """Read a layer of some texts."""
        weights, step = self.weights, seen.step
        for layer, head in self.axes:
            if layer == seen.layer:
                z = step.everywhere(step.z)[:, :, head]
                added = _added(weights, step, attention.write(z, step.block.w_o[head]))
                length = added.norm(dim=-1) / step.everywhere(step.resid_pre).norm(dim=-1)
                length = length.where(seen.visible.sum(-1) >= FEWEST_SEEN, math.nan)
                self._vectors[layer, head] = added
                self._starts[layer, head] = length, seen.pattern[:, head]
        for index, depth in self._depths.items():
            if not index[0] <= seen.layer < depth:
                continue
            if weights.config.family.norm_after_sum:
                self._vectors[index] = _after_norms_of_sums(weights, step, self._vectors[index])
            if seen.layer == depth - 1:
                along = self.axes[index].effect(self._vectors[index].cpu())
                for row, number in enumerate(seen.members):
                    length, pattern = (part[row].cpu() for part in self._starts[index])
                    self.of_texts[index][number] = Written(length, along[row], pattern)


def _added(weights: Weights, step: Step, delta_e: Tensor) -> Tensor:
    """ΔE as it is added to the stream: after the norm of the write, if the family has one, with its
    scale held. `text pos d_model`, unchanged
    """
    config = weights.config
    if not config.family.norm_after_write:
        return delta_e
    write = step.everywhere(blocks.merge_heads(step.block, step.z))
    return _through(delta_e, step.block.norm_out, write, weights)


def _after_norms_of_sums(weights: Weights, step: Step, vectors: Tensor) -> Tensor:
    """Writes after the two norms of a block that norms its sums, with their scales held.
    `text pos d_model`, unchanged
    """
    block = step.block
    write = step.everywhere(blocks.merge_heads(block, step.z))
    vectors = _through(vectors, block.norm, step.everywhere(step.resid_pre) + write, weights)
    write = step.everywhere(blocks.mlp_writer(weights, block).write(step.hidden))
    total = step.everywhere(step.resid_mid) + write
    return _through(vectors, block.norm_mlp, total, weights)


def _through(vectors: Tensor, gain: Tensor | None, total: Tensor, weights: Weights) -> Tensor:
    """Vectors after a norm whose scale is that of `total`. `text pos d_model`, unchanged"""
    config = weights.config
    scale = blocks.norm_scale(total, config)[..., None]
    centred = config.family.norm == "LayerNorm"
    return through_norm(vectors, blocks.gain_of(gain, config), scale, centred=centred)


def events(
    texts: Sequence[Text], of_texts: Mapping[int, Written]
) -> Iterator[tuple[str, int, int, int]]:
    """The SHOWN texts in which a head writes most by length, and most along the axis: how the text
    was chosen, its number in this order, its number among the texts, and the position.

    Special tokens and positions that see few tokens do not count.
    """
    for chosen in (LENGTH, ALONG):
        sizes = []
        for number, text in enumerate(texts):
            of_text = of_texts[number]
            assert text.tokens is not None
            is_special = torch.tensor([start == end for start, end in text.tokens.spans])
            size = of_text.length if chosen == LENGTH else of_text.along.abs()
            left_out = is_special | of_text.length.isnan()
            sizes.append(size.double().masked_fill(left_out, -1.0).numpy())
        largest = np.array([size.max() for size in sizes])
        by_size = [index for index in resampling.order(largest) if largest[index] >= 0]
        for rank, index in enumerate(by_size[:SHOWN]):
            yield chosen, rank, int(index), int(resampling.order(sizes[index])[0])


def _event_rows(text: Text, pos: int, of_text: Written, key: Mapping[str, object]) -> pd.DataFrame:
    """The tokens of one text, as a head reads them from one position."""
    assert text.tokens is not None
    return pd.DataFrame(
        {
            **key,
            "text": text.tokens.text,
            "length": float(of_text.length[pos]),
            "write": float(of_text.along[pos]),
            "pos": range(len(text.ids)),
            "piece": text.tokens.pieces,
            "attention": of_text.pattern[pos].double().numpy(),
            # As in the table readings, where the query is the word.
            "role": ["word" if here == pos else "context" for here in range(len(text.ids))],
        }
    )


# --- the tables -----------------------------------------------------------------------------------

ATTENTION = "0 to 1"
TABLES = {
    "profiles": Table(
        "what every head does in natural sentences and in repeated random tokens",
        {
            **as_elsewhere("word"),
            "texts": Column(
                "natural: sentences of the lexicon, about all of its words. repeated: random "
                "tokens, each text twice"
            ),
            **as_elsewhere("layer", "head"),
            "previous": Column("mean attention to the token before the query", ATTENTION),
            "next": Column(
                "mean attention to the token after the query. Missing in a causal model.", ATTENTION
            ),
            "first": Column("mean attention to the first token", ATTENTION),
            "itself": Column("mean attention to the query's own position", ATTENTION),
            "induction": Column(
                "mean attention from a random token's second occurrence to the token after its "
                "first",
                ATTENTION,
            ),
            "duplicate": Column(
                "mean attention from a random token's second occurrence to its first", ATTENTION
            ),
            "entropy": Column(
                "mean entropy of the attention, divided by the logarithm of the number of tokens "
                "that the query can see: 0 for a single token, 1 for equal attention",
                ATTENTION,
            ),
            "distance": Column("mean distance from the query to the tokens it reads", "tokens"),
            "cue_share": Column(
                "of the attention from ambiguous words to content words, the share on the cue",
                ATTENTION,
            ),
            "even_share": Column(
                "cue_share if the same attention were divided evenly between the content words",
                ATTENTION,
            ),
        },
        rows,
    ),
    "elsewhere": Table(
        "natural sentences in which the top heads write most, token by token",
        {
            **as_elsewhere("word", "layer", "head"),
            "chosen": Column(
                "why the sentence is listed. length: the head's write is long there. axis: it is "
                "large along the word's axis."
            ),
            "number": Column("number of the sentence in this order, counted from 0"),
            **as_elsewhere("sense_a", "sense_b", "text"),
            "length": Column(
                "length of the head's write at the position with the role word, divided by the "
                "length of the residual stream there",
                "fraction of the stream",
            ),
            "write": Column(
                "the head's write at that position along the sense axis, positive toward the first "
                "sense",
                "fraction of the sense gap",
            ),
            "pos": Column("position of the token, counted from 0"),
            **as_elsewhere("piece"),
            "attention": Column("attention from that position to this token", ATTENTION),
            "role": Column("word: the position that attends. context: every other token"),
        },
        rows,
    ),
    "directions": Table(
        "leading singular directions of the top heads' matrices, as tokens",
        {
            **as_elsewhere("word", "layer", "head"),
            "matrix": Column("OV: what the head writes for what it reads. QK: where it attends"),
            "number": Column("number of the direction, counted from 0, the strongest first"),
            "share": Column(
                "share of the matrix's squared norm that the direction holds", "0 to 1"
            ),
            "share_random": Column("the same of a random matrix of this shape", "0 to 1"),
            "side": Column(
                "of OV: reads or writes. Of QK: query (the token that attends) or key (the token "
                "that is attended to)"
            ),
            "end": Column(
                "+ or -: the side of the direction. A head that reads tokens of one end writes "
                "toward the same end, and queries of one end match keys of the same end."
            ),
            "rank": Column("0 for the token that is furthest along the direction"),
            "token": Column("the token"),
        },
        rows,
    ),
}


def kinds_in_general(of_head: pd.DataFrame) -> list[tuple[str, float, str, float]]:
    """What a head is in general: each kind with its article, the share of attention that says so,
    the texts, and the limit of the share. Empty for most heads.

    of_head: the rows of one head in the table `profiles`
    """
    shares = [
        (
            kind,
            float(of_head.loc[of_head["texts"] == texts, column].iloc[0]),
            in_texts,
            NAMED_FROM,
        )
        for kind, column, texts, in_texts in KINDS
    ]
    return [each for each in shares if each[1] >= NAMED_FROM]


FILTERS = (kinds_in_general,)


def measure(run: WordRun) -> "dict[str, xr.Dataset]":
    """The profile of every head, and what the top heads write elsewhere and can write, by table.
    `texts layer head`, and `row` each
    """
    heads = run.top_heads
    of_heads: dict[str, list[pd.DataFrame]] = {"elsewhere": [], "directions": []}
    pair = run.prepared[run.clearest]
    axes = {
        head: run.observation.axis_for_others(pair.sense, pair.readout.direct[head[0]])
        for head in heads
    }
    writes = HeadWrites(run.weights, axes)
    texts, of_model = profile(run.model, seed=run.options.seed, writes=writes)
    for (layer, head), of_texts in writes.of_texts.items():
        for chosen, number, text, pos in events(texts, of_texts):
            key = {"layer": layer, "head": head, "chosen": chosen, "number": number}
            key |= dict(zip(("sense_a", "sense_b"), pair.sense.senses, strict=True))
            of_heads["elsewhere"].append(_event_rows(texts[text], pos, of_texts[text], key))
    if heads:
        of_heads["directions"] = directions_as_tokens(run.model, heads)
    return {"profiles": of_model} | tables_of(TABLES, of_heads)
