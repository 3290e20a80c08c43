"""Which heads of cross-attention carry a choice of word from one language to the other, and from
which source words: exact swaps.

Two sources and one beginning of a translation, which goes on with another word after each source. M
is the logit of the first token of word A less that of word B, at the last target position. A swap
gives one run a part of the other's, everything else responds, and M is read again; each is
performed, none approximated.

* Heads: z of one head, at the last target position only. Earlier target positions keep what they
  read, so all heads together need not make up the whole gap: what is missing came in through
  earlier words of the translation.
* Source words: what the encoder hands over at some source positions, for all heads and all target
  positions. All positions together are the other run.

Source: Heimersheim & Nanda 2024 and Zhang & Nanda 2024 (activation patching, denoising and
noising).

What cross-attention adds to a word's logit by itself: ΔE by source token, along the direction that
reaches the logit.

Nothing downstream responds: what later heads and MLPs make of a write is left out, and every norm
that the stream still passes keeps the scale that it had in the run (a norm's mean and gain are
taken along). So read, the logit is a sum over all that was ever written, of which these are some
terms.

Source: Elhage et al. 2021 (direct paths); Wang et al. 2022 (direct logit attribution with the
norm's scale frozen).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probe.errors import InputError, UnsupportedModel, whole_number
from probe.model import forward, fused
from probe.model.decomposition import before_norm
from probe.model.forward import Decoded, Stacks
from probe.model.load import ModelSource, load
from probe.model.model import Model
from probe.model.records import PairTrace
from probe.model.tokens import target_tokens, tokenize
from probe.model.weights import read_stacks
from probe.patching.variants import Branch, Cross, Edits, Run, Z, branches
from probe.stats.numbers import counted

__all__ = ["WordChoice", "direct_logits", "swap_heads", "swap_source_words"]


@dataclass(frozen=True)
class WordChoice:
    """Two source texts, one beginning of a translation of both, and the word that follows it after
    each."""

    source_a: str
    source_b: str
    target: str
    word_a: str
    word_b: str


@dataclass(frozen=True, eq=False)
class CrossSwaps:
    """The margin of every choice, and how far each swap moves it; recipient 0 reads source A, 1
    source B.

    The margin M is the logit of the first token of word A less that of word B, at the last target
    position. Ratios are NaN where the gap is 0, as of two sources that are one.

    `margin: choice recipient` · `moved: choice recipient layer head` · `together: choice
    recipient`, all heads at once.
    """

    margin: Tensor
    moved: Tensor
    together: Tensor

    @property
    def gap(self) -> Tensor:
        """G = M(A) - M(B). `-> choice`"""
        return self.margin[:, 0] - self.margin[:, 1]

    @property
    def toward(self) -> Tensor:
        """How far each swap moves M toward the donor's, half of the two directions' sum. `-> choice
        layer head`"""
        return (self.moved[:, 1] - self.moved[:, 0]) / 2

    @property
    def denoise(self) -> Tensor:
        """R_dn: source B's run with z of source A's, as a fraction of the gap; a ratio of sums. `->
        layer head`"""
        return self.moved[:, 1].sum(0) / self.gap.sum()

    @property
    def noise(self) -> Tensor:
        """R_ns: source A's run with z of source B's. `-> layer head`"""
        return -self.moved[:, 0].sum(0) / self.gap.sum()

    @property
    def effect(self) -> Tensor:
        """E, the mean of both. `-> layer head`"""
        return (self.denoise + self.noise) / 2

    @property
    def all_heads(self) -> float:
        """The same E of all heads at once: below 1 by what came in through earlier target
        positions."""
        return float((self.together[:, 1] - self.together[:, 0]).sum() / 2 / self.gap.sum())


def swap_heads(model: ModelSource, choices: Sequence[WordChoice]) -> CrossSwaps:
    """How far the margin between the two words moves when one head of cross-attention has the other
    run's z.

    For every head, at the last target position; the margin is the logit of word A's first token
    less that of word B's. Raises UnsupportedModel for a model without cross-attention; InputError
    for an empty or over-long text, and for words that do not follow the target or begin with the
    same token.

    Example:
        >>> model = probe.load("tiny-translator")
        >>> river = "He sat near the river by the bank"
        >>> money = "He sat near the money by the bank"
        >>> target = "Il était assis près de la"
        >>> choice = probe.cross.WordChoice(river, money, target, "rive", "banque")
        >>> swaps = probe.cross.swap_heads(model, [choice])
        >>> swaps.moved.shape  # choice recipient layer head
        torch.Size([1, 2, 2, 4])
    """
    model = load(model)
    stacks = _stacks_of(model)
    _require_choices(choices)
    layers, heads = stacks["cross"].shape[:2]
    eye = torch.eye(layers * heads, dtype=torch.bool, device=model.device)
    one_head = eye.unflatten(1, (layers, heads))
    all_heads = one_head.new_ones(1, layers, heads)
    tree = branches(torch.cat([one_head, all_heads]))
    margins = []
    moved = []
    with torch.inference_mode():
        for choice in choices:
            words = _first_tokens(model, choice)
            target = target_tokens(model, choice.target).ids
            runs = []
            for source in (choice.source_a, choice.source_b):
                memory = forward.encode(stacks, tokenize(model, source).ids)
                runs.append(forward.decode(stacks, target, memory))
            margin = torch.stack([_margin(run.logits, words) for run in runs])
            swapped = []
            for recipient, donor in zip(runs, reversed(runs), strict=True):
                logits = _swapped(stacks, recipient, donor, tree, len(target))
                swapped.append(_margin(logits, words))
            margins.append(margin)
            moved.append(torch.stack(swapped) - margin[:, None])
    every = torch.stack(moved).cpu().clone()  # choice recipient set, all heads at once the last
    return CrossSwaps(
        margin=torch.stack(margins).cpu().clone(),
        moved=every[..., :-1].unflatten(-1, (layers, heads)),
        together=every[..., -1],
    )


def _swapped(
    stacks: Stacks, recipient: Decoded, donor: Decoded, tree: Sequence[Branch], n: int
) -> Tensor:
    """Logits of every set of heads at the last of `n` target positions, with z of the donor. `->
    set d_vocab`"""
    decoder = stacks["decoder"]
    at = torch.zeros(1, dtype=torch.long, device=decoder.device)
    run = Run(
        decoder,
        fused.position_tables(decoder, n),
        depth=len(tree),
        edits=Edits(Z, tree, lambda layer, own: donor.z[layer, None, None]),
        at=at,
        read=at,
        cross=Cross(stacks["cross"], [(k[None], v[None]) for k, v in recipient.read]),
    )
    before = [(k[None], v[None]) for k, v in recipient.own]
    for step in run.steps(recipient.entering[None, None], before):
        last = step
    resid = last.reading(last.resid_post)[0]  # variant d_model
    return forward.unembed(decoder, resid[last.branch.variant_of])


def swap_source_words(
    model: ModelSource, choices: Sequence[WordChoice], positions: Sequence[Sequence[Sequence[int]]]
) -> Tensor:
    """How far the margin (see `swap_heads`) moves with the other run's encoder output at some
    source positions.

    `positions`: for every choice as many sets of source positions. `-> choice recipient set`.
    Raises as `swap_heads`, and InputError where the two sources are not equally long or a position
    is not in them.

    Example:
        >>> model = probe.load("tiny-translator")
        >>> river = "He sat near the river by the bank"
        >>> money = "He sat near the money by the bank"
        >>> target = "Il était assis près de la"
        >>> choice = probe.cross.WordChoice(river, money, target, "rive", "banque")
        >>> moved = probe.cross.swap_source_words(model, [choice], [[[5], [5, 8]]])
        >>> moved.shape  # choice recipient set
        torch.Size([1, 2, 2])
    """
    model = load(model)
    stacks = _stacks_of(model)
    _require_choices(choices)
    _require_sets(choices, positions)
    moved = []
    with torch.inference_mode():
        for choice, sets in zip(choices, positions, strict=True):
            words = _first_tokens(model, choice)
            target = target_tokens(model, choice.target).ids
            rows = [tokenize(model, source).ids for source in (choice.source_a, choice.source_b)]
            taken = _taken(choice, sets, *map(len, rows)).to(model.device)
            memory = [forward.encode(stacks, ids) for ids in rows]
            by_recipient = []
            for own, donor in zip(memory, reversed(memory), strict=True):
                mixed = torch.where(taken, donor, own)
                margin = _margin(forward.decode(stacks, target, mixed).logits, words)
                by_recipient.append(margin[1:] - margin[0])  # the first takes nothing
            moved.append(torch.stack(by_recipient))
    return torch.stack(moved).cpu().clone()


def _stacks_of(model: Model) -> Stacks:
    if model.config.family.kind != "encoder-decoder":
        raise UnsupportedModel(
            f"Swapping cross-attention of {model.name}: it has none, expected an encoder-decoder; "
            "take a T5, BART or Marian."
        )
    return read_stacks(model.weights, model.config)


def _require_choices(choices: Any) -> None:
    """Raises InputError for no choices, and for what is none."""
    given = choices if isinstance(choices, Sequence) and not isinstance(choices, str) else ()
    if not given or not all(isinstance(choice, WordChoice) for choice in given):
        raise InputError(
            f"Swapping cross-attention: got {choices!r}, expected at least one choice of word; "
            "give a list, as in [probe.cross.WordChoice(source_a, source_b, target, word_a, "
            "word_b)]."
        )


def _require_sets(choices: Sequence[WordChoice], positions: Any) -> None:
    """Raises InputError for anything but a list of sets of positions for each choice."""
    by_choice = positions if _is_list(positions) else ()
    if (
        len(by_choice) != len(choices)
        or not all(_is_list(sets) and len(sets) for sets in by_choice)
        or not all(_is_list(one_set) for sets in by_choice for one_set in sets)
    ):
        raise InputError(
            f"Swapping words of {counted(len(choices), 'pair')} of sources: got positions "
            f"{positions!r}, expected for each pair a list of sets of positions; give "
            "[[[5], [5, 8]]] for two sets of one pair, say."
        )


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _taken(choice: WordChoice, sets: Sequence[Sequence[int]], size: int, other: int) -> Tensor:
    """Where each set takes the other run's, the first nowhere. `-> 1 + set, key_pos 1`"""
    if size != other:
        raise InputError(
            f"Swapping words of {choice.source_a!r} and {choice.source_b!r}: got {size} and "
            f"{other} tokens, expected as many in both; give two sentences whose words stand at "
            "the same places."
        )
    for pos in (pos for positions in sets for pos in positions):
        if whole_number(pos) is None or not 0 <= pos < size:
            raise InputError(
                f"Swapping words of {choice.source_a!r}: got position {pos!r}, expected 0 to "
                f"{size - 1}; choose one of these."
            )
    taken = torch.zeros(1 + len(sets), size, 1, dtype=torch.bool)
    for row, positions in zip(taken[1:], sets, strict=True):
        row[list(positions)] = True
    return taken


def _margin(logits: Tensor, words: tuple[int, int]) -> Tensor:
    return logits[..., words[0]] - logits[..., words[1]]


def _first_tokens(model: Model, choice: WordChoice) -> tuple[int, int]:
    return _two_tokens(model, choice.target, choice.word_a, choice.word_b)


def _two_tokens(model: Model, target: str, word: str, other: str) -> tuple[int, int]:
    """The first tokens of two words behind the target. Raises InputError where both are one."""
    first = first_token(model, target, word)
    second = first_token(model, target, other)
    if first == second:
        raise InputError(
            f"Choosing between {word!r} and {other!r}: both begin with the same token, expected "
            "two; give words that begin differently, or a target that goes on as far as they agree."
        )
    return first, second


def first_token(model: Model, target: str, word: str) -> int:
    """The first token of `word` behind `target`. Raises InputError for no word, and where the
    target's own tokens change with it."""
    if not isinstance(word, str) or not word.strip():
        raise InputError(
            f"Putting a word behind {target!r}: got {word!r}, expected a word; give one that the "
            "translation may go on with."
        )
    before = target_tokens(model, target).ids
    whole = target_tokens(model, f"{target.rstrip()} {word}").ids
    if whole[: len(before)] != before or len(whole) == len(before):
        raise InputError(
            f"Putting {word!r} behind {target!r}: the tokens of the target change, expected it to "
            "end where a word does; give the target up to the end of a word."
        )
    return whole[len(before)]


@dataclass(frozen=True, eq=False)
class Directions:
    """What a write is multiplied with to get what it adds to a logit: `decoder cross mlp: layer
    query_pos d_model`. `entering: query_pos d_model` is the same for what enters the first layer.
    """

    decoder: Tensor
    cross: Tensor
    mlp: Tensor
    entering: Tensor


def direct_logits(
    model: ModelSource, pair: PairTrace, word: str, *, against: str | None = None
) -> Tensor:
    """What each cross-attention head adds, by source token, to the logit of `word` less that of
    `against`, at every target position.

    `-> layer head query_pos key_pos`, in logits; both words by their first token behind the target,
    without `against` less the mean of the vocabulary. Raises InputError for a word that does not
    follow the target.

    Example:
        >>> model = probe.load("tiny-translator")
        >>> river = "He sat near the river by the bank"
        >>> target = "Il était assis près de la"
        >>> pair = probe.trace(model, river, target)
        >>> adds = probe.cross.direct_logits(model, pair, "rive", against="banque")
        >>> adds.shape == pair.cross.pattern.shape  # layer head query_pos key_pos
        True
    """
    model = load(model)
    if not isinstance(pair, PairTrace):
        raise InputError(
            f"Reading what cross-attention adds to {word!r}: got {type(pair).__name__}, expected "
            "the trace of a source and its translation; give probe.trace(model, source, target)."
        )
    target = pair.target.text
    tokens: tuple[int, ...]
    if against is None:
        tokens = (first_token(model, target, word),)
    else:
        tokens = _two_tokens(model, target, word, against)
    return by_source(pair, directions(model, pair, toward(model, *tokens)))


def toward(model: Model, token: int, other: int | None = None) -> Tensor:
    """The direction of a token's logit in what leaves the decoder, less the other's or the mean of
    all. `-> d_model`"""
    table = forward.unembedding(
        read_stacks(model.weights, model.config)["decoder"], model.dtype
    ).cpu()
    return table[token] - (table.mean(0) if other is None else table[other])


def by_source(pair: PairTrace, along: Directions) -> Tensor:
    """ΔE of every cross-attention head by source token, along its direction. `-> layer head
    query_pos key_pos`"""
    w_o = torch.stack([block.w_o for block in pair.cross.stack.blocks]).cpu()
    direction_of_z = torch.einsum("lhdm,ltm->lhtd", w_o, along.cross)
    return pair.cross.pattern * (direction_of_z @ pair.cross.v.transpose(-1, -2))


def directions(model: Model, pair: PairTrace, direction: Tensor) -> Directions:
    """The direction that leaves the decoder, followed back to where every part of it is written."""
    config = model.config
    stacks = {name: stack.on("cpu") for name, stack in read_stacks(model.weights, config).items()}
    back = direction.expand(len(pair.target), -1)
    final, _ = stacks["decoder"].norm(config.family.final_norm, direction.dtype)
    if final is not None:
        back = before_norm(back, pair.decoder.resid_post[-1], final, config)
    by_writer: dict[str, list[Tensor]] = {"mlp": [], "cross": [], "decoder": []}
    for layer in reversed(range(len(pair.cross.z))):
        own = stacks["decoder"].blocks[layer]
        across = stacks["cross"].blocks[layer]
        # Against the way of the stream: the MLP writes last. The stream in front of each writer,
        # what it writes, and the gain of the norm behind the sum.
        writers = {
            "mlp": (pair.cross.resid_mid[layer], pair.decoder.mlp_out[layer], own.norm_mlp),
            "cross": (pair.cross.resid_pre[layer], pair.cross.attn_out[layer], across.norm),
            "decoder": (pair.decoder.resid_pre[layer], pair.decoder.attn_out[layer], own.norm),
        }
        for name, (resid, written, gain) in writers.items():
            if config.family.norm_after_sum:
                assert gain is not None
                back = before_norm(back, resid + written, gain, config)
            by_writer[name].append(back)
    stacked = {name: torch.stack(layers[::-1]) for name, layers in by_writer.items()}
    return Directions(**stacked, entering=back)
