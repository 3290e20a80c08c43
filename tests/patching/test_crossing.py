"""Swaps of cross-attention heads and of source words compared with plain hooked forwards, and
direct writes that sum to the logit.
"""

from functools import partial

import numpy as np
import pytest
import torch
from families import PAIRED, each_family, family_model
from inside import CrossSwaps, directions, first_token, read_stacks, toward
from inside import hooks as hooked

import probe

EACH = each_family(*PAIRED, also=("bart",))
A, B = "Make a deposit at the bank", "He sat by the river near the bank"
TARGET, WORDS = "a fluffy blue creature", ("roamed", "bank")
CHOICE = probe.cross.WordChoice(A, B, TARGET, *WORDS)
EVEN = probe.cross.WordChoice(B, "He sat near the river by the bank", TARGET, *WORDS)


def target_of(model):
    return probe.trace(model, A, TARGET).target.ids


def margins(model, source, edits):
    """M of a plain forward of the bridge, without the library: a row for each of `edits`,
    `{hook: change}`."""

    def edit(where):
        def change(tensor, hook):
            tensor = tensor.clone()
            for row, of_row in zip(tensor, edits, strict=True):
                of_row.get(where, lambda same: None)(row)
            return tensor

        return change

    ids, target = probe.tokenize(model, source).ids, target_of(model)
    tokens, decoder_input = (torch.tensor([row] * len(edits)) for row in (ids, target))
    hooks = [(where, edit(where)) for where in {where for of_row in edits for where in of_row}]
    inputs = {"attention_mask": torch.ones_like(tokens), "decoder_input": decoder_input}
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=hooks):
        logits = model.bridge(tokens, **inputs)[:, -1]
    first, second = (first_token(model, TARGET, word) for word in WORDS)
    return logits[:, first] - logits[:, second]


def z_of(model, source):
    """z of cross-attention at the last target position. `layer head d_head`"""
    read = hooked.read(model, probe.tokenize(model, source).ids, target_of(model))
    return read.tensors["cross"]["z"][:, :, -1]


def giving(z, *, head=None):
    """The edit that puts z into some heads of every layer, or of one, at the last target
    position.
    """

    def give(heads, value, row):
        row[-1, heads] = value

    if head is not None:
        return {f"decoder_blocks.{head[0]}.cross_attn.hook_z": partial(give, head[1], z[head])}
    by_layer = {layer: partial(give, slice(None), of_layer) for layer, of_layer in enumerate(z)}
    return {f"decoder_blocks.{layer}.cross_attn.hook_z": edit for layer, edit in by_layer.items()}


@pytest.mark.parametrize("kind", [*EACH, "t5 in float32"])
def test_every_swap_and_all_at_once_are_plain_forwards_with_z_patched(kind):
    family, _, single = kind.partition(" in ")
    model = family_model(family, torch.float32 if single else torch.float64)
    swaps = probe.cross.swap_heads(model, [CHOICE])
    for side, (source, donor) in enumerate(((A, B), (B, A))):
        z = z_of(model, donor)
        heads = [giving(z, head=head) for head in np.ndindex(*z.shape[:2])]
        base, *by_head, together = margins(model, source, [{}, *heads, giving(z)])
        close = (1e-5 if single else 1e-10) * max(1, float(base.abs()))
        assert abs(swaps.margin[0, side] - base) <= close
        expected = torch.stack(by_head) - base
        torch.testing.assert_close(swaps.shift[0, side].flatten(), expected, rtol=0, atol=close)
        assert swaps.together[0, side].item() == pytest.approx(float(together - base), abs=close)
    assert swaps.shift.abs().max() > 1e-3  # otherwise there is nothing to compare
    assert abs(swaps.all_heads - 1) > 1e-3  # earlier target words read the source, too


def test_a_donor_that_is_the_sentence_itself_moves_nothing_and_reversed_labels_reverse_the_sign():
    model = family_model("bart", torch.float64)
    same = probe.cross.swap_heads(model, [probe.cross.WordChoice(A, A, TARGET, *WORDS)])
    assert same.shift.abs().max() < 1e-12 and same.gap.abs().max() < 1e-12
    reversed_choice = probe.cross.WordChoice(B, A, TARGET, *WORDS)
    forward, backward = (
        probe.cross.swap_heads(model, [choice]) for choice in (CHOICE, reversed_choice)
    )
    torch.testing.assert_close(forward.toward, -backward.toward)
    torch.testing.assert_close(forward.noise, backward.denoise)
    torch.testing.assert_close(forward.effect, backward.effect)


def test_ratios_are_ratios_of_sums_over_choices():
    effects = torch.tensor([[-1.0, 3.0], [-2.0, 1.0]])[..., None, None]
    margin, together = torch.tensor([[[2.0, -2.0], [1.0, 0.0]], [[-4.0, 4.0], [0.0, 0.0]]])
    swaps = CrossSwaps(margin=margin, shift=effects, together=together)
    assert swaps.gap.tolist() == [4.0, 1.0]
    assert (swaps.noise.item(), swaps.denoise.item()) == pytest.approx((3 / 5, 4 / 5))
    assert swaps.effect.item() == pytest.approx(7 / 10) and swaps.all_heads == pytest.approx(4 / 5)
    assert swaps.toward.squeeze().tolist() == [2.0, 1.5]


@pytest.mark.parametrize("kind", EACH)
def test_source_words_are_swapped_as_a_plain_forward_with_the_memory_patched(kind):
    model = family_model(kind, torch.float64)
    sources = EVEN.source_a, EVEN.source_b
    ids, target = [probe.tokenize(model, text).ids for text in sources], target_of(model)
    sets = [[], [1], [0, len(ids[0]) - 1], list(range(len(ids[0])))]
    effects = probe.cross.swap_source_words(model, [EVEN], [sets])[0]
    memory = [hooked.read(model, row, target).tensors["cross"]["memory"][0] for row in ids]

    def give(positions, donor, row):
        row[positions] = donor[positions].to(row)

    layers = range(model.config.n_decoder_layers)
    hook = "decoder_blocks.{}.cross_attn.{}.hook_in"
    read = [hook.format(layer, part) for layer in layers for part in "kv"]
    for side in (0, 1):
        gives = [partial(give, positions, memory[1 - side]) for positions in sets]
        edits = [dict.fromkeys(read, edit) for edit in gives]
        base, *by_set = margins(model, sources[side], [{}, *edits])
        torch.testing.assert_close(effects[side], torch.stack(by_set) - base, rtol=1e-9, atol=1e-11)
    gap = probe.cross.swap_heads(model, [EVEN]).gap[0]
    torch.testing.assert_close(effects[:, 0], torch.zeros(2, dtype=torch.float64))  # nothing
    torch.testing.assert_close(effects[:, -1], torch.stack([-gap, gap]))  # everything


@pytest.mark.parametrize("kind", EACH)
def test_all_writes_add_up_to_the_logit(kind):
    """Embedding, self- and cross-attention, MLPs and every bias along their directions: together
    they make the logit difference.
    """
    model = family_model(kind, torch.float64)
    pair = probe.trace(model, A, TARGET)
    tokens = [first_token(model, TARGET, word) for word in WORDS]
    along = directions(model, pair, toward(model, *tokens))
    total = (along.entering * pair.decoder.resid_pre[0]).sum(-1)
    writes = pair.decoder.attn_out, pair.cross.attn_out, pair.decoder.mlp_out
    for where, write in zip((along.decoder, along.cross, along.mlp), writes, strict=True):
        total = total + (where * write).sum((0, -1))
    total = total + biases(model, along, toward(model, *tokens)) + logits_bias(model, tokens)
    torch.testing.assert_close(
        total, pair.logits[:, tokens[0]] - pair.logits[:, tokens[1]], rtol=1e-9, atol=1e-9
    )


def biases(model, along, direction):
    """The contributions of the norms' biases, each along the direction after its norm, which is
    the direction before the next one.
    """
    stacks = read_stacks(model.weights, model.config)
    if not model.config.family.norm_after_sum:
        _, last_bias = stacks["decoder"].norm(model.config.family.final_norm, direction.dtype)
        return 0 if last_bias is None else direction @ last_bias
    total = 0
    for layer, (block, across) in enumerate(
        zip(stacks["decoder"].blocks, stacks["cross"].blocks, strict=True)
    ):
        last = layer == len(stacks["decoder"].blocks) - 1
        after = direction.expand_as(along.entering) if last else along.decoder[layer + 1]
        total = total + after @ block.norm_mlp_bias
        total = total + along.mlp[layer] @ across.norm_bias + along.cross[layer] @ block.norm_bias
    return total


def logits_bias(model, tokens):
    bias = model.weights.get("final_logits_bias")
    return 0 if bias is None else bias[0, tokens[0]] - bias[0, tokens[1]]


@pytest.mark.parametrize("kind", EACH)
def test_by_source_is_delta_e_by_source_along_the_direction(kind):
    model = family_model(kind, torch.float64)
    pair = probe.trace(model, A, TARGET)
    added = probe.cross.direct_logits(model, pair, *WORDS[:1], against=WORDS[1])
    assert added.shape == pair.cross.pattern.shape
    along = directions(
        model, pair, toward(model, *(first_token(model, TARGET, word) for word in WORDS))
    )
    parts = pair.cross.delta_e_by_source(1, 2, 3)
    torch.testing.assert_close(added[1, 2, 3], parts @ along.cross[1, 3], rtol=1e-9, atol=1e-12)
    single = probe.cross.direct_logits(model, pair, WORDS[0])
    mean = directions(model, pair, toward(model, first_token(model, TARGET, WORDS[0])))
    torch.testing.assert_close(
        single[0, 1, 2], pair.cross.delta_e_by_source(0, 1, 2) @ mean.cross[0, 2]
    )
    against_each = torch.stack([toward(model, 5, token) for token in range(len(pair.logits[0]))])
    torch.testing.assert_close(toward(model, 5), against_each.mean(0))


LIST = "expected at least one choice of word. Give a list, as in [probe.cross.WordChoice("
NO_SETS = "expected for each pair a list of sets of positions. Give [[[5], [5, 8]]] for two sets of"
NO_WORD = "expected a word. Give one with which the translation can continue."
BEYOND = (
    "'He sat by the river near the bank': got position 99, expected 0 to 16. Choose one of these"
)
LONGER = (
    "the bank': got 18 and 17 tokens, expected equal numbers. Give two sentences whose words are"
)
ALIKE = (
    "Cannot choose between 'bank' and 'bank': both begin with the same token. Give words that beg"
)
NONE = (
    "Cannot swap cross-attention of bert: it has none, expected an encoder-decoder. Take a T5, BA"
)


def choice(*words):
    return [probe.cross.WordChoice(A, B, TARGET, *words)]


@pytest.mark.parametrize(
    ("swap", "arguments", "message"),
    [
        ("swap_heads", [[]], f"Cannot swap cross-attention: got [], {LIST}"),
        ("swap_heads", [CHOICE], f"got {CHOICE!r}, {LIST}"),
        ("swap_heads", [[(A, B, TARGET, *WORDS)]], LIST),
        (
            "swap_heads",
            [choice("", "bank")],
            f"Cannot put a word after {TARGET!r}: got '', {NO_WORD}",
        ),
        ("swap_heads", [choice("bank", "bank")], ALIKE),
        ("swap_source_words", [[], []], LIST),
        ("swap_source_words", [[EVEN], []], f"1 pair of sources: got positions [], {NO_SETS}"),
        ("swap_source_words", [[EVEN], [[5]]], f"got positions [[5]], {NO_SETS}"),
        ("swap_source_words", [[EVEN], [[["river"]]]], "got position 'river', expected 0 to"),
        ("swap_source_words", [[EVEN], [[[99]]]], BEYOND),
        ("swap_source_words", [[CHOICE], [[[0]]]], LONGER),
    ],
)
def test_an_impossible_choice_of_words_is_refused_in_one_sentence(swap, arguments, message):
    with pytest.raises(probe.InputError) as raised:
        getattr(probe.cross, swap)(family_model("bart"), *arguments)
    assert message in str(raised.value)
    with pytest.raises(probe.UnsupportedModel) as raised:
        probe.cross.swap_heads(family_model("bert"), [CHOICE])
    assert str(raised.value).startswith(NONE)


def test_direct_logits_require_the_trace_of_a_translation_and_two_words():
    model = family_model("bart")
    pair = probe.trace(model, A, TARGET)
    for arguments, message in (
        ([pair.target, "bank"], "expected the trace of a source and its translation. Give"),
        ([pair, None], NO_WORD),
    ):
        with pytest.raises(probe.InputError, match=message):
            probe.cross.direct_logits(model, *arguments)
    with pytest.raises(
        probe.InputError, match="'bank' and 'bank': both begin with the same token."
    ):
        probe.cross.direct_logits(model, pair, "bank", against="bank")


def test_a_target_that_ends_within_a_word_is_refused(monkeypatch):
    model = family_model("bart")
    whole = probe.trace(model, A, f"{TARGET} bank").target
    monkeypatch.setattr(probe.cross, "target_tokens", lambda model, text: whole)
    with pytest.raises(probe.InputError) as raised:
        first_token(model, TARGET, "bank")
    assert str(raised.value) == (
        "Cannot put 'bank' after 'a fluffy blue creature': the tokens of the target change. "
        "Give the target up to the end of a word."
    )
