"""Swaps of cross-attention heads and of source words against plain forwards of the hooked model, and direct writes that
close.
"""

from functools import partial

import pytest
import torch
from families import PAIRED, each_family, family_model

import probe
from probe.errors import InputError, UnsupportedModel
from probe.model import trace as hooked
from probe.model.tokens import target_tokens, tokenize
from probe.model.weights import read_stacks
from probe.patching.cross import CrossSwaps, directions, first_token, toward

EACH = each_family(*PAIRED)
CLOSE = {torch.float32: 1e-5, torch.float64: 1e-10}
A, B = "Make a deposit at the bank", "He sat by the river near the bank"
TARGET, WORDS = "a fluffy blue creature", ("roamed", "bank")
CHOICE = probe.WordChoice(A, B, TARGET, *WORDS)
EVEN = probe.WordChoice(B, "He sat near the river by the bank", TARGET, *WORDS)


def patched(model, source, target, where, edit):
    """Logits at the last position of a plain forward of the bridge in which `edit` changes what the hook `where`
    holds.
    """
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=[(where, edit)] if where else []):
        return run(model, tokenize(model, source).ids, target_tokens(model, target).ids)[-1]


def run(model, ids, target):
    """Logits of the bridge as it is called without probe: `query_pos d_vocab`."""
    tokens, decoder_input = (torch.tensor([row]) for row in (ids, target))
    return model.bridge(tokens, attention_mask=torch.ones_like(tokens), decoder_input=decoder_input)[0]


def z_of(model, source, target):
    reading = hooked.read(model, tokenize(model, source).ids, target_tokens(model, target).ids)
    return reading.tensors["cross"]["z"][:, :, -1]


def give(head, value, z, hook):
    changed = z.clone()
    changed[:, -1, head] = value
    return changed


def margin(logits, words):
    return logits[words[0]] - logits[words[1]]


CASES = [*((*kind.values, torch.float64, kind.marks) for kind in each_family(*PAIRED)), ("t5", torch.float32, ())]


@pytest.mark.parametrize(("kind", "dtype"), [pytest.param(kind, dtype, marks=marks) for kind, dtype, marks in CASES])
def test_every_swap_is_that_of_a_plain_forward_with_z_patched(kind, dtype):
    model = family_model(kind, dtype)
    found = probe.swap_cross_heads(model, [CHOICE])
    words = [first_token(model, TARGET, word) for word in WORDS]
    sources = (A, B)
    plain = [margin(patched(model, source, TARGET, "", None), words) for source in sources]
    torch.testing.assert_close(found.margin[0], torch.stack(plain), rtol=CLOSE[dtype], atol=CLOSE[dtype])
    donors = [z_of(model, source, TARGET) for source in reversed(sources)]
    wanted = torch.empty_like(found.moved[0])
    for side, (source, z) in enumerate(zip(sources, donors, strict=True)):
        for layer, of_layer in enumerate(z):
            for head, value in enumerate(of_layer):
                where = f"decoder_blocks.{layer}.cross_attn.hook_z"
                logits = patched(model, source, TARGET, where, partial(give, head, value))
                wanted[side, layer, head] = margin(logits, words) - plain[side]
    scale = wanted.abs().max().item()
    assert scale > 1e-3  # or there would be nothing to compare
    torch.testing.assert_close(found.moved[0], wanted, rtol=0, atol=CLOSE[dtype] * max(scale, max(map(abs, plain))))


@pytest.mark.parametrize("kind", EACH)
def test_all_heads_at_once_are_one_forward_with_every_z_patched(kind):
    model = family_model(kind, torch.float64)
    found = probe.swap_cross_heads(model, [CHOICE])
    words = [first_token(model, TARGET, word) for word in WORDS]
    for side, (source, donor) in enumerate(((A, B), (B, A))):
        hooks = [
            (f"decoder_blocks.{layer}.cross_attn.hook_z", partial(give, slice(None), z))
            for layer, z in enumerate(z_of(model, donor, TARGET))
        ]
        with torch.inference_mode(), model.bridge.hooks(fwd_hooks=hooks):
            logits = run(model, tokenize(model, source).ids, target_tokens(model, TARGET).ids)[-1]
        moved = margin(logits, words) - found.margin[0, side]
        assert found.together[0, side].item() == pytest.approx(moved.item(), rel=1e-9)
    assert abs(found.all_heads - 1) > 1e-3  # earlier target words read the source, too


def test_a_donor_that_is_the_sentence_itself_moves_nothing_and_labels_turned_round_turn_the_sign():
    model = family_model("bart", torch.float64)
    same = probe.swap_cross_heads(model, [probe.WordChoice(A, A, TARGET, *WORDS)])
    assert same.moved.abs().max() < 1e-12 and same.gap.abs().max() < 1e-12
    one, other = (
        probe.swap_cross_heads(model, [choice]) for choice in (CHOICE, probe.WordChoice(B, A, TARGET, *WORDS))
    )
    torch.testing.assert_close(one.toward, -other.toward)
    torch.testing.assert_close(one.noise, other.denoise)
    torch.testing.assert_close(one.effect, other.effect)


def test_with_one_target_position_all_heads_together_are_the_whole_gap():
    """Nothing stands before the start token, so nothing but z there differs between the runs."""
    model = family_model("bart", torch.float64)
    start, ids = [model.config.start_token], [tokenize(model, text).ids for text in (A, B)]
    hooks = [
        (f"decoder_blocks.{layer}.cross_attn.hook_z", partial(give, slice(None), z[:, -1]))
        for layer, z in enumerate(hooked.read(model, ids[1], start).tensors["cross"]["z"])
    ]
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=hooks):
        swapped = run(model, ids[0], start)
    torch.testing.assert_close(swapped, run(model, ids[1], start), rtol=0, atol=1e-12)


def test_ratios_are_ratios_of_sums_over_choices():
    moved = torch.tensor([[-1.0, 3.0], [-2.0, 1.0]])[..., None, None]
    found = CrossSwaps(
        margin=torch.tensor([[2.0, -2.0], [1.0, 0.0]]), moved=moved, together=torch.tensor([[-4.0, 4.0], [0.0, 0.0]])
    )
    assert found.gap.tolist() == [4.0, 1.0]
    assert (found.noise.item(), found.denoise.item()) == pytest.approx((3 / 5, 4 / 5))
    assert found.effect.item() == pytest.approx(7 / 10) and found.all_heads == pytest.approx(4 / 5)
    assert found.toward.squeeze().tolist() == [2.0, 1.5]
    with pytest.raises(ValueError, match="got shapes"):
        CrossSwaps(margin=torch.zeros(2, 2), moved=moved[0], together=torch.zeros(2, 2))


@pytest.mark.parametrize("kind", EACH)
def test_source_words_are_swapped_as_a_plain_forward_with_the_memory_patched(kind):
    model = family_model(kind, torch.float64)
    ids = [tokenize(model, text).ids for text in (EVEN.source_a, EVEN.source_b)]
    size = len(ids[0])
    assert size == len(ids[1])
    places = [[], [1], [0, size - 1], list(range(size))]
    found = probe.swap_source_words(model, [EVEN], [places])[0]
    whole = probe.swap_cross_heads(model, [EVEN])
    words, target = [first_token(model, TARGET, word) for word in WORDS], target_tokens(model, TARGET).ids
    memory = [hooked.read(model, row, target).tensors["cross"]["memory"][0] for row in ids]
    for side in (0, 1):
        for column, chosen in enumerate(places):

            def edit(chosen, donor, tensor, hook):
                changed = tensor.clone()
                changed[0, chosen] = donor[chosen].to(changed)
                return changed

            hooks = [
                (f"decoder_blocks.{layer}.cross_attn.{part}.hook_in", partial(edit, chosen, memory[1 - side]))
                for layer in range(model.config.n_decoder_layers)
                for part in "kv"
            ]
            with torch.inference_mode(), model.bridge.hooks(fwd_hooks=hooks):
                logits = run(model, ids[side], target)[-1]
            moved = (margin(logits, words) - whole.margin[0, side]).item()
            assert found[side, column].item() == pytest.approx(moved, rel=1e-9, abs=1e-11)
    torch.testing.assert_close(found[:, 0], torch.zeros(2, dtype=torch.float64))  # nothing
    torch.testing.assert_close(found[:, -1], torch.stack([-whole.gap[0], whole.gap[0]]))  # everything


@pytest.mark.parametrize("kind", EACH)
def test_what_is_written_anywhere_adds_up_to_the_logit(kind):
    """Embedding, self- and cross-attention, MLPs and every bias along their directions: the logit difference, to the
    last digit.
    """
    model = family_model(kind, torch.float64)
    pair = probe.trace(model, A, TARGET)
    tokens = [first_token(model, TARGET, word) for word in WORDS]
    found = directions(model, pair, toward(model, *tokens))
    total = (found.entering * pair.decoder.resid_pre[0]).sum(-1)
    for where, trace, name in (
        (found.decoder, pair.decoder, "attn_out"),
        (found.cross, pair.cross, "attn_out"),
        (found.mlp, pair.decoder, "mlp_out"),
    ):
        total = total + (where * getattr(trace, name)).sum((0, -1))
    total = total + biases(model, found, toward(model, *tokens)) + logits_bias(model, tokens)
    torch.testing.assert_close(total, pair.logits[:, tokens[0]] - pair.logits[:, tokens[1]], rtol=1e-9, atol=1e-9)


def biases(model, found, direction):
    """What the norms' own biases add: each along the direction behind its norm, which is the next one's in front."""
    stacks = read_stacks(model.weights, model.config)
    if stacks["decoder"].blocks[0].norm_bias is None:
        return 0
    total = 0
    for layer, (own, across) in enumerate(zip(stacks["decoder"].blocks, stacks["cross"].blocks, strict=True)):
        last = layer == len(stacks["decoder"].blocks) - 1
        behind = direction.expand_as(found.entering) if last else found.decoder[layer + 1]
        total = total + behind @ own.norm_mlp_bias
        total = total + found.mlp[layer] @ across.norm_bias + found.cross[layer] @ own.norm_bias
    return total


def logits_bias(model, tokens):
    bias = model.weights.get("final_logits_bias")
    return 0 if bias is None else bias[0, tokens[0]] - bias[0, tokens[1]]


@pytest.mark.parametrize("kind", EACH)
def test_by_source_is_delta_e_by_source_along_the_direction(kind):
    model = family_model(kind, torch.float64)
    pair = probe.trace(model, A, TARGET)
    added = probe.cross_logits(model, pair, *WORDS[:1], against=WORDS[1])
    assert added.shape == pair.cross.pattern.shape
    found = directions(model, pair, toward(model, *(first_token(model, TARGET, word) for word in WORDS)))
    parts = pair.cross.delta_e_by_source(1, 2, 3)
    torch.testing.assert_close(added[1, 2, 3], parts @ found.cross[1, 3], rtol=1e-9, atol=1e-12)
    alone = probe.cross_logits(model, pair, WORDS[0])
    mean = directions(model, pair, toward(model, first_token(model, TARGET, WORDS[0])))
    torch.testing.assert_close(alone[0, 1, 2], pair.cross.delta_e_by_source(0, 1, 2) @ mean.cross[0, 2])
    against_each = torch.stack([toward(model, 5, other) for other in range(len(pair.logits[0]))])
    torch.testing.assert_close(toward(model, 5), against_each.mean(0))


@pytest.mark.parametrize(
    ("kind", "ask", "sentence"),
    [
        (
            "bert",
            lambda model: probe.swap_cross_heads(model, [CHOICE]),
            "Swapping cross-attention of bert: it has none, expected an encoder-decoder; take a T5, BART or Marian.",
        ),
        (
            "bart",
            lambda model: probe.swap_source_words(model, [CHOICE], [[[0]]]),
            "Swapping words of 'Make a deposit at the bank' and 'He sat by the river near the bank': got "
            + "18 and 17 tokens, expected as many in both; give two sentences whose words stand at the same places.",
        ),
        (
            "bart",
            lambda model: probe.swap_source_words(model, [EVEN], [[[99]]]),
            (
                "Swapping words of 'He sat by the river near the bank': got position 99, expected 0 to 16; "
                "choose one of "
                "these."
            ),
        ),
        (
            "bart",
            lambda model: probe.swap_cross_heads(model, [probe.WordChoice(A, B, TARGET, "bank", "bank")]),
            "Choosing between 'bank' and 'bank': both begin with the same token, expected two; give words "
            + "that begin differently, or a target that goes on as far as they agree.",
        ),
    ],
)
def test_what_cannot_be_swapped_is_one_sentence(kind, ask, sentence):
    error = UnsupportedModel if kind == "bert" else InputError
    with pytest.raises(error) as raised:
        ask(family_model(kind))
    assert str(raised.value) == sentence


def test_a_target_that_ends_within_a_word_is_refused(monkeypatch):
    model = family_model("bart")
    whole = target_tokens(model, f"{TARGET} bank")
    monkeypatch.setattr("probe.patching.cross.target_tokens", lambda model, text: whole)
    with pytest.raises(InputError) as raised:
        first_token(model, TARGET, "bank")
    assert str(raised.value) == (
        "Putting 'bank' behind 'a fluffy blue creature': the tokens of the target change, expected it to end where a "
        "word does; "
        "give the target up to the end of a word."
    )
