"""Cross-attention: which heads, and which source words, decide between two translations.

Two sources share the beginning of a translation, which continues with a different word after each
source. M is the logit of the first token of word A minus that of word B, at the last target
position. A swap gives one run a part of the other's, everything later responds, and M is read
again. Every swap is performed; none is approximated.

* Heads: z of one head, at the last target position only. Earlier target positions keep what they
  have read, so all heads together need not make up the whole gap: the rest came in through earlier
  words of the translation.
* Source words: the encoder's output at some source positions, for all heads and all target
  positions. All positions together give the other run.

Source: Heimersheim & Nanda 2024 and Zhang & Nanda 2024 (activation patching, denoising and
    noising).

`direct_logits` is ΔE of cross-attention by source token, along the direction that reaches a word's
    logit. Here nothing later responds: the effect of a write through later heads and MLPs is
    ignored, and every later norm keeps the scale that it had in the run (its mean and gain are
    applied). Under these conditions the logit is a sum over everything that was ever written, and
    the result holds some of its terms.

Source: Elhage et al. 2021 (direct paths); Wang et al. 2022 (direct logit attribution with the
    norm's scale frozen).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probe.errors import InputError, UnsupportedModel, whole_number
from probe.model import forward
from probe.model.decomposition import before_norm
from probe.model.load import ModelSource, load
from probe.model.model import Model
from probe.model.records import PairTrace
from probe.model.tokens import target_tokens, tokenize
from probe.model.variants import (
    Branch,
    Decoded,
    Edits,
    Stacks,
    Z,
    branches,
    decode,
    encode,
    run_last,
)
from probe.model.weights import read_stacks
from probe.stats.numbers import counted

__all__ = ["WordChoice", "direct_logits", "swap_heads", "swap_source_words"]


@dataclass(frozen=True)
class WordChoice:
    """Two source texts, the shared beginning of their translations, and the word that follows it
    after each source.
    """

    source_a: str
    source_b: str
    target: str
    word_a: str
    word_b: str


@dataclass(frozen=True, eq=False)
class CrossSwaps:
    """The margin of every choice, and how far each swap moves it.

    margin: `choice recipient`, M: the logit of the first token of word A minus that of word B, at
        the last target position
    shift: `choice recipient layer head`
    together: `choice recipient`, for a swap of all heads at once

    Recipient 0 reads source A, recipient 1 source B. Ratios are NaN if the gap is 0, e.g. for two
    identical sources.
    """

    margin: Tensor
    shift: Tensor
    together: Tensor

    @property
    def gap(self) -> Tensor:
        """G = M(A) - M(B). `-> choice`"""
        return self.margin[:, 0] - self.margin[:, 1]

    @property
    def toward(self) -> Tensor:
        """How far each swap moves M toward the donor's: half the sum over both recipients.

        `-> choice layer head`
        """
        return (self.shift[:, 1] - self.shift[:, 0]) / 2

    @property
    def denoise(self) -> Tensor:
        """R_dn: source B's run with z of source A's, as a fraction of the gap (a ratio of sums).

        `-> layer head`
        """
        return self.shift[:, 1].sum(0) / self.gap.sum()

    @property
    def noise(self) -> Tensor:
        """R_ns: source A's run with z of source B's, as a fraction of the gap. `-> layer head`"""
        return -self.shift[:, 0].sum(0) / self.gap.sum()

    @property
    def effect(self) -> Tensor:
        """E, the mean of `denoise` and `noise`. `-> layer head`"""
        return (self.denoise + self.noise) / 2

    @property
    def all_heads(self) -> float:
        """E of all heads at once; below 1 by the part that came in through earlier target
        positions.
        """
        return float((self.together[:, 1] - self.together[:, 0]).sum() / 2 / self.gap.sum())


def swap_heads(model: ModelSource, choices: Sequence[WordChoice]) -> CrossSwaps:
    """How far the margin between the two words moves if one head of cross-attention has the
    other run's z, for every head.

    The swap is at the last target position. The margin is the logit of word A's first token minus
    that of word B's.

    Raises UnsupportedModel for a model without cross-attention. Raises InputError for an empty or
    over-long text, and for words that do not follow the target or that begin with the same token.

    Example:
        >>> model = probe.load("tiny-translator")
        >>> river = "He sat near the river by the bank"
        >>> money = "He sat near the money by the bank"
        >>> target = "Il était assis près de la"
        >>> choice = probe.cross.WordChoice(river, money, target, "rive", "banque")
        >>> swaps = probe.cross.swap_heads(model, [choice])
        >>> swaps.shift.shape  # choice recipient layer head
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
    shifts = []
    with torch.inference_mode():
        for choice in choices:
            words = _first_tokens(model, choice)
            target = target_tokens(model, choice.target).ids
            runs = []
            for source in (choice.source_a, choice.source_b):
                memory = encode(stacks, tokenize(model, source).ids)
                runs.append(decode(stacks, target, memory))
            margin = torch.cat([_margin(run.logits, words) for run in runs])
            with_swaps = []
            for recipient, donor in zip(runs, reversed(runs), strict=True):
                logits = _logits_with_donor(stacks, recipient, donor, tree)
                with_swaps.append(_margin(logits, words))
            margins.append(margin)
            shifts.append(torch.stack(with_swaps) - margin[:, None])
    # choice recipient set, all heads at once the last
    all_moved = torch.stack(shifts).cpu().clone()
    return CrossSwaps(
        margin=torch.stack(margins).cpu().clone(),
        shift=all_moved[..., :-1].unflatten(-1, (layers, heads)),
        together=all_moved[..., -1],
    )


def _logits_with_donor(
    stacks: Stacks, recipient: Decoded, donor: Decoded, tree: Sequence[Branch]
) -> Tensor:
    """Logits of every set of heads at the last target position, with z of the donor.

    `-> set d_vocab`
    """
    edits = Edits(Z, tree, lambda layer, unchanged: donor.z[:, layer, None])
    for step in run_last(stacks, recipient, edits):
        last = step
    resid = last.at_read_position(last.resid_post)[0]  # variant d_model
    return forward.unembed(stacks["decoder"], resid[last.branch.variant_of])


def swap_source_words(
    model: ModelSource, choices: Sequence[WordChoice], positions: Sequence[Sequence[Sequence[int]]]
) -> Tensor:
    """How far the margin (see `swap_heads`) moves if some source positions have the other run's
    encoder output.

    `choice recipient set`

    positions: sets of source positions for each choice; every choice has the same number of sets

    Raises what `swap_heads` raises. Raises InputError for sources of different length and for
    positions outside them.

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
    shifts = []
    with torch.inference_mode():
        for choice, sets in zip(choices, positions, strict=True):
            words = _first_tokens(model, choice)
            target = target_tokens(model, choice.target).ids
            rows = [tokenize(model, source).ids for source in (choice.source_a, choice.source_b)]
            from_donor = _from_donor(choice, sets, *map(len, rows)).to(model.device)
            memories = [encode(stacks, ids) for ids in rows]
            by_recipient = []
            for recipient, donor in zip(memories, reversed(memories), strict=True):
                mixture = torch.where(from_donor, donor, recipient)
                margin = _margin(decode(stacks, target, mixture).logits, words)
                by_recipient.append(margin[1:] - margin[0])  # the first set is empty
            shifts.append(torch.stack(by_recipient))
    return torch.stack(shifts).cpu().clone()


def _stacks_of(model: Model) -> Stacks:
    if model.config.family.kind != "encoder-decoder":
        raise UnsupportedModel(
            f"Cannot swap cross-attention of {model.name}: it has none, expected an "
            "encoder-decoder. Take a T5, BART or Marian."
        )
    return read_stacks(model.weights, model.config)


def _require_choices(choices: Any) -> None:
    """Raises InputError for an empty list, and for anything that is not a WordChoice."""
    items = choices if isinstance(choices, Sequence) and not isinstance(choices, str) else ()
    if not items or not all(isinstance(choice, WordChoice) for choice in items):
        raise InputError(
            f"Cannot swap cross-attention: got {choices!r}, expected at least one choice of word. "
            "Give a list, as in [probe.cross.WordChoice(source_a, source_b, target, word_a, "
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
            f"Cannot swap words of {counted(len(choices), 'pair')} of sources: got positions "
            f"{positions!r}, expected for each pair a list of sets of positions. Give "
            "[[[5], [5, 8]]] for two sets of one pair, say."
        )


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _from_donor(choice: WordChoice, sets: Sequence[Sequence[int]], size: int, donor: int) -> Tensor:
    """Where each set takes the other run's encoder output; the first set is empty.

    `-> 1 + set, key_pos 1`

    size, donor: the number of tokens of the two sources
    """
    if size != donor:
        raise InputError(
            f"Cannot swap words of {choice.source_a!r} and {choice.source_b!r}: got {size} and "
            f"{donor} tokens, expected equal numbers. Give two sentences whose words are at "
            "the same positions."
        )
    for pos in (pos for positions in sets for pos in positions):
        if whole_number(pos) is None or not 0 <= pos < size:
            raise InputError(
                f"Cannot swap words of {choice.source_a!r}: got position {pos!r}, expected 0 to "
                f"{size - 1}. Choose one of these."
            )
    mask = torch.zeros(1 + len(sets), size, 1, dtype=torch.bool)
    for row, positions in zip(mask[1:], sets, strict=True):
        row[list(positions)] = True
    return mask


def _margin(logits: Tensor, words: tuple[int, int]) -> Tensor:
    return logits[..., words[0]] - logits[..., words[1]]


def _first_tokens(model: Model, choice: WordChoice) -> tuple[int, int]:
    return _two_tokens(model, choice.target, choice.word_a, choice.word_b)


def _two_tokens(model: Model, target: str, word: str, other_word: str) -> tuple[int, int]:
    """The first tokens of two words after the target. Raises InputError if they are equal."""
    first = first_token(model, target, word)
    second = first_token(model, target, other_word)
    if first == second:
        raise InputError(
            f"Cannot choose between {word!r} and {other_word!r}: both begin with the same token. "
            "Give words that begin differently, or a target that includes their common beginning."
        )
    return first, second


def first_token(model: Model, target: str, word: str) -> int:
    """The first token of `word` after `target`.

    Raises InputError for an empty word, and if the word changes the tokens of the target.
    """
    if not isinstance(word, str) or not word.strip():
        raise InputError(
            f"Cannot put a word after {target!r}: got {word!r}, expected a word. Give one with "
            "which the translation can continue."
        )
    before = target_tokens(model, target).ids
    continuation = target_tokens(model, f"{target.rstrip()} {word}").ids
    if continuation[: len(before)] != before or len(continuation) == len(before):
        raise InputError(
            f"Cannot put {word!r} after {target!r}: the tokens of the target change. Give the "
            "target up to the end of a word."
        )
    return continuation[len(before)]


@dataclass(frozen=True, eq=False)
class Directions:
    """The direction of every writer: its product with a write is what the write adds to a logit.

    decoder, cross, mlp: `layer query_pos d_model`
    entering: `query_pos d_model`, for the stream that enters the first layer
    """

    decoder: Tensor
    cross: Tensor
    mlp: Tensor
    entering: Tensor


def direct_logits(
    model: ModelSource, pair: PairTrace, word: str, *, against: str | None = None
) -> Tensor:
    """What each cross-attention head adds, by source token, to the logit of `word` minus that of
    `against`, at every target position.

    `layer head query_pos key_pos`, in logits. Each word stands for its first token after the
    target. Without `against`, the mean over the vocabulary is subtracted. Raises InputError for a
    word that does not follow the target.

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
            f"Cannot read the contribution of cross-attention to {word!r}: got "
            f"{type(pair).__name__}, expected the trace of a source and its translation. Give "
            "probe.trace(model, source, target)."
        )
    target = pair.target.text
    tokens: tuple[int, ...]
    if against is None:
        tokens = (first_token(model, target, word),)
    else:
        tokens = _two_tokens(model, target, word, against)
    return by_source(pair, directions(model, pair, toward(model, *tokens)))


def toward(model: Model, token: int, second_token: int | None = None) -> Tensor:
    """The direction of a token's logit in the decoder's output, minus that of the other token or
    the mean over the vocabulary.

    `-> d_model`
    """
    table = forward.unembedding(
        read_stacks(model.weights, model.config)["decoder"], model.dtype
    ).cpu()
    return table[token] - (table.mean(0) if second_token is None else table[second_token])


def by_source(pair: PairTrace, along: Directions) -> Tensor:
    """ΔE of every cross-attention head by source token, along its direction.

    `-> layer head query_pos key_pos`
    """
    # <A V W_O, u> = A <V, W_O u>: u is carried back through W_O once, not every V forward.
    w_o = torch.stack([block.w_o for block in pair.cross.stack.blocks]).cpu()
    direction_of_z = torch.einsum("lhdm,ltm->lhtd", w_o, along.cross)
    return pair.cross.pattern * (direction_of_z @ pair.cross.v.transpose(-1, -2))


def directions(model: Model, pair: PairTrace, direction: Tensor) -> Directions:
    """A direction in the decoder's output, followed back to every writer."""
    config = model.config
    stacks = {name: stack.on("cpu") for name, stack in read_stacks(model.weights, config).items()}
    back = direction.expand(len(pair.target), -1)
    final, _ = stacks["decoder"].norm(config.family.final_norm, direction.dtype)
    if final is not None:
        back = before_norm(back, pair.decoder.resid_post[-1], final, config)
    by_writer: dict[str, list[Tensor]] = {"mlp": [], "cross": [], "decoder": []}
    for layer in reversed(range(len(pair.cross.z))):
        decoder_block = stacks["decoder"].blocks[layer]
        across = stacks["cross"].blocks[layer]
        # Backwards through a layer: the MLP writes last. For each writer: the stream before it, its
        # write, and the gain of the norm after the sum.
        writers = {
            "mlp": (
                pair.cross.resid_mid[layer],
                pair.decoder.mlp_out[layer],
                decoder_block.norm_mlp,
            ),
            "cross": (pair.cross.resid_pre[layer], pair.cross.attn_out[layer], across.norm),
            "decoder": (
                pair.decoder.resid_pre[layer],
                pair.decoder.attn_out[layer],
                decoder_block.norm,
            ),
        }
        for name, (resid, write, gain) in writers.items():
            if config.family.norm_after_sum:
                assert gain is not None
                back = before_norm(back, resid + write, gain, config)
            by_writer[name].append(back)
    by_layer = {name: torch.stack(layers[::-1]) for name, layers in by_writer.items()}
    return Directions(**by_layer, entering=back)
