"""Swaps between any two texts, read by any metric: every number is compared with a whole hooked
forward.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from families import LAYERS, family_model, make_family
from handmade import random_model
from hooked_runs import bound, edit_at_each, hook_name, read_all
from inside import (
    TargetText,
    read_weights,
    sign_flip_test,
    swap_pairs,
    target_states,
    trace_positions,
)
from inside import hooks as hooked

import probe
from probe import InputError, UnsupportedModel, load, tokenize
from probe.studies import patch as patching

A = "The mole dug under the river bank after the flood"
B = "The mole dug under the apple bank after the flood"
LONGER = "She photographed the very old muddy bank soon after the sale of it"
TOKENS = (17, 30)  # ids: the tokens of a random model mean nothing
# The first three families never round to float32, so different orders of sums agree to 1e-10.
EXACT = ("gpt2", "gpt_neox", "bert")
KINDS = (*EXACT, "llama", "gemma2")
QUANTITIES = {"heads": "z", "mlp": "mlp_out", "stream": "resid_pre"}


def own_metric(logits):
    """The log of the probability of the first token, given that it is one of three."""
    return logits[..., TOKENS[0]] - logits[..., [*TOKENS, 99]].logsumexp(-1)


METRICS = {"coordinate": None, "tokens": TOKENS, "function": own_metric}


def model_of(kind):
    return family_model(kind, torch.float64)


def hooked_ends(model, text, read, layer=0, quantity="z", indices=(), values=()):
    """The stream after the last block and the logits at position `read` of whole hooked forwards,
    one for each index of the quantity that is changed.

    `-> row d_model, row d_vocab`
    """
    rows = [tokenize(model, text).ids] * max(1, len(indices))
    streams = []
    change = edit_at_each(indices, values)

    def edit(tensor, hook):
        tensor = tensor.clone()
        change(tensor)
        return tensor

    last = hook_name(model, LAYERS - 1, "resid_post")
    points = [
        (hook_name(model, layer, quantity), edit),
        (last, lambda resid, hook: streams.append(resid[:, read].clone())),
    ]
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=points):
        logits = hooked.run(model, rows)[:, read]
    return streams[0], logits


def position(model, text, word):
    return tokenize(model, text).positions_of(word)[-1]


def by_hooks(model, texts, at, read, metric, part="heads"):
    """The numbers of `patch`, each from a hooked forward: denoise, noise, gap, and the size of the
    logits from which M is read.

    `-> layer variant, layer variant, number, number`
    """
    sources = [tokenize(model, text) for text in texts]
    spots = [position(model, text, at) for text in texts]
    reads = [position(model, text, read) for text in texts]
    quantity = QUANTITIES[part]
    runs = [read_all(model, source.ids, [quantity]) for source in sources]
    ends = [hooked_ends(model, text, end) for text, end in zip(texts, reads, strict=True)]
    (vector_a, _), (vector_b, _) = ends
    direction = vector_a[0] - vector_b[0]

    def value(vectors, logits):
        if metric is None:
            return (vectors - vector_b) @ direction / (direction @ direction)
        if callable(metric):
            return metric(logits)
        return logits[:, metric[0]] - logits[:, metric[1]]

    gap = float(value(*ends[0]) - value(*ends[1]))
    by_recipient = []
    for recipient, donor in ((0, 1), (1, 0)):
        layers = []
        for layer in range(LAYERS):
            donor_part = runs[donor][quantity][layer, spots[donor]]
            indices, values = [(spots[recipient],)], [donor_part]
            if part == "heads":
                indices = [(spots[recipient], head) for head in range(len(donor_part))]
                values = list(donor_part)
            text, end = texts[recipient], reads[recipient]
            changed = value(*hooked_ends(model, text, end, layer, quantity, indices, values))
            layers.append(changed - value(*ends[recipient]))
        by_recipient.append(torch.stack(layers))
    into_a, into_b = by_recipient
    scale = max(1.0, float(ends[0][1].abs().max())) if metric is not None else 1.0
    return into_b, -into_a, gap, scale


def assert_equal(model, frame, expected, shape):
    denoise, noise, gap, scale = expected
    # An absolute bound of 1e-10. Families that round to float32 inside are bounded relative to the
    # size of the numbers that are read.
    allowed = bound(model) * (scale if model.config.family.in_float32 else 1.0)
    for name, by_forwards in (("denoise", denoise), ("noise", noise)):
        by_patch = torch.tensor(frame[name].to_numpy()).view(shape)
        assert (by_patch - by_forwards).abs().max() <= allowed, name
    assert np.allclose(frame["gap"], gap, rtol=0, atol=allowed)
    assert np.allclose(frame["swap"], (frame["denoise"] + frame["noise"]) / 2, rtol=0, atol=1e-15)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_swap_of_every_head_equals_a_hooked_forward(kind, metric):
    model = model_of(kind)
    frame = probe.patch(model, A, against=B, at="bank", metric=metric)
    assert list(frame.columns) == ["layer", "head", "denoise", "noise", "swap", "gap"]
    heads = model.config.n_heads
    assert frame["layer"].tolist() == [layer for layer in range(LAYERS) for _ in range(heads)]
    assert frame["head"].tolist() == [*range(heads)] * LAYERS
    assert_equal(model, frame, by_hooks(model, (A, B), "bank", "bank", metric), (LAYERS, heads))
    assert frame["swap"].abs().max() > 1e-3


@pytest.mark.parametrize("part", QUANTITIES)
@pytest.mark.parametrize("kind", KINDS)
def test_parts_swapped_at_one_token_and_read_at_another_equal_hooked_forwards(kind, part):
    model = model_of(kind)
    read = "after" if model.config.causal else "the"
    for against in (B, LONGER):  # of equal length, and longer
        frame = probe.patch(
            model, A, against=against, at="bank", read=read, metric=TOKENS, parts=part
        )
        expected = by_hooks(model, (A, against), "bank", read, TOKENS, part)
        assert_equal(model, frame, expected, (LAYERS, -1))
        assert ("head" in frame) == (part == "heads")
        # In a block that is parallel, the first MLP reads only the embedding of the swapped token,
        # which is equal in both texts.
        same_in_both = part == "mlp" and model.config.family.parallel_attn_mlp
        assert same_in_both or frame["swap"].abs().max() > 1e-5
        # After the last block nothing reads the swapped token.
        if part == "heads" and model.config.causal:
            assert (frame.loc[frame["layer"] == LAYERS - 1, "swap"] == 0).all()


@pytest.mark.parametrize("kind", ("gpt2", "bert"))
def test_swaps_of_every_position_equal_the_causal_trace(kind):
    model = model_of(kind)
    frame = probe.patch(model, A, against=B, at="bank", parts="positions")
    assert list(frame.columns) == ["component", "layer", "pos", "denoise", "noise", "swap", "gap"]
    ends = [hooked_ends(model, text, position(model, text, "bank"))[0][0] for text in (A, B)]
    difference = ends[0] - ends[1]
    weights = read_weights(model)
    texts = [
        TargetText(tokenize(model, text).ids, position(model, text, "bank")) for text in (A, B)
    ]
    along = (difference / (difference @ difference))[None]
    traced = trace_positions(weights, texts[:1], texts[1:], along, depth=LAYERS, heads=False)
    rows = pd.DataFrame(traced.rows())
    assert sorted(frame["pos"].unique()) == list(traced.positions)
    for name in ("component", "layer", "pos"):
        assert frame[name].tolist() == rows[name].tolist()
    for name in ("denoise", "noise", "gap"):
        assert np.allclose(frame[name], rows[name], rtol=0, atol=1e-10)
    # The donor's stream at one position of the first block moves M by a part of the gap; at the
    # word of the last block, by nearly all of it.
    assert frame["swap"].abs().max() > 0.1


def test_pairs_that_are_patched_together_equal_single_pairs_in_the_same_order(monkeypatch):
    model = model_of("gpt2")
    a = [A, LONGER, A, B, LONGER]
    b = [B, A, LONGER, A, B]
    metrics = [None, TOKENS, own_metric, None, (5, 9)]
    together = probe.patch(model, a, against=b, at="bank", metric=metrics)
    for number, (text, against, metric) in enumerate(zip(a, b, metrics, strict=True)):
        single = probe.patch(model, text, against=against, at="bank", metric=metric)
        of_pair = together[together["pair"] == number].drop(columns="pair").reset_index(drop=True)
        pd.testing.assert_frame_equal(of_pair, single, rtol=0, atol=1e-11)
    monkeypatch.setattr(patching, "BATCH_NUMBERS", 1)
    one_by_one = probe.patch(model, a, against=b, at="bank", metric=metrics)
    pd.testing.assert_frame_equal(one_by_one, together, rtol=0, atol=1e-11)
    assert next(iter(together.columns)) == "pair" and together["pair"].is_monotonic_increasing


def test_exchanging_the_texts_exchanges_denoise_and_noise_and_a_position_equals_its_word():
    model = model_of("gpt2")
    a_to_b = probe.patch(model, A, against=B, at="bank", metric=TOKENS)
    b_to_a = probe.patch(model, B, against=A, at="bank", metric=TOKENS)
    assert np.allclose(a_to_b["denoise"], -b_to_a["noise"], rtol=0, atol=1e-12)
    assert np.allclose(a_to_b["gap"], -b_to_a["gap"], rtol=0, atol=1e-12)
    by_name = probe.patch(model, A, against=B, at="bank", metric=TOKENS, depth=LAYERS)
    by_position = probe.patch(model, A, against=B, at=position(model, A, "bank"), metric=TOKENS)
    from_the_end = position(model, A, "bank") - len(tokenize(model, A))
    by_end = probe.patch(model, A, against=B, at=from_the_end, metric=TOKENS)
    for same in (by_name, by_position, by_end):
        pd.testing.assert_frame_equal(same, a_to_b)


def test_the_coordinate_after_fewer_blocks_equals_the_swaps_of_a_shorter_run():
    model = random_model(torch.float64)
    frame = probe.patch(model, A, against=B, at="bank", depth=2)
    assert sorted(frame["layer"].unique()) == [0, 1] and (frame["gap"].round(12) == 1).all()
    weights = read_weights(model)
    tokens = [tokenize(model, text) for text in (A, B)]
    spots = [position(model, text, "bank") for text in (A, B)]
    states = target_states(model, tokens, spots)
    difference = states.resid[0, 2] - states.resid[1, 2]
    direction = (difference / (difference @ difference))[None]
    rows = [TargetText(text.ids, at) for text, at in zip(tokens, spots, strict=True)]
    swaps = swap_pairs(weights, rows[:1], rows[1:], direction, depth=2)
    assert np.allclose(frame["denoise"], swaps[0, 1, ..., 0].flatten(), rtol=0, atol=1e-10)
    assert np.allclose(frame["noise"], -swaps[0, 0, ..., 0].flatten(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_hooks_of_a_swap_have_the_effect_in_transformer_lens_that_patch_reports(kind):
    model = model_of(kind)
    head = (1, 2)
    for texts in ((A, B), (LONGER, A)):
        frame = probe.patch(model, texts[0], against=texts[1], at="bank", metric=TOKENS).set_index(
            ["layer", "head"]
        )
        hooks = probe.patch_hooks(model, texts[0], against=texts[1], at="bank", heads=[head])
        ids = torch.tensor([tokenize(model, texts[1]).ids])
        at = position(model, texts[1], "bank")
        with torch.inference_mode():
            plain = model.bridge(ids)[0, at]
            patched = model.bridge.run_with_hooks(ids, fwd_hooks=hooks)[0, at]
        change = (patched - plain)[TOKENS[0]] - (patched - plain)[TOKENS[1]]
        assert float(change) == pytest.approx(frame.loc[head, "denoise"], abs=bound(model))
        assert abs(float(change)) > 1e-4
        # The hooks are removed after the run.
        assert torch.equal(model.bridge(ids)[0, at], plain)


REFUSED = [
    ({"at": 1.5}, "Cannot find 1.5 in .*: expected one word, or one position as a whole number"),
    ({"at": "shore"}, "Cannot find 'shore' in .*: it occurs nowhere"),
    ({"at": 99}, "Cannot find token 99"),
    ({"at": "mole"}, "Cannot patch 'mole' in pair 0: its texts are the same up to this token"),
    ({"read": 1}, "gpt2 reads left to right, so nothing moves there"),
    ({"depth": 1.5}, "Cannot patch up to depth 1.5: the model has 2 blocks"),
    ({"depth": 1, "metric": TOKENS}, "Cannot read the logits of gpt2 after 1 blocks"),
    ({"parts": "neurons"}, "Cannot patch parts = 'neurons': expected one of 'heads', 'mlp'"),
    ({"parts": "positions", "against": LONGER}, "Cannot patch every position of pair 0"),
    ({"against": [B]}, "Cannot patch pairs of texts: got one text and 1 text"),
    ({"against": 5}, "Cannot patch pairs of texts: got one text and int"),
    ({"metric": (17, 17)}, "its two tokens are the same"),
    ({"metric": (1.5, 17)}, "Cannot read the logit of a token: got 1.5"),
    ({"metric": (" bank", " mortgage")}, "Cannot read the logit of ' mortgage': gpt2 cuts it into"),
    ({"metric": (5, 6, 7)}, "expected None, a pair of next tokens"),
    ({"metric": [None, None]}, "Cannot patch 1 pairs of texts with 2 metrics"),
    ({"metric": lambda logits: logits}, "it returned a tensor of shape .2, 400."),
    ({"metric": lambda logits: 0.5}, "it returned a float for logits of shape .2, 400."),
    ({"metric": lambda logits: logits[..., 5] > 0}, "it returned bool numbers"),
    ({"metric": lambda logits: logits[..., 5] / 0}, "it returned NaN or an infinite number"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_input_that_cannot_be_patched_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        probe.patch(model_of("gpt2"), A, **({"against": B, "at": "bank"} | options))


@pytest.mark.parametrize("heads", ["L0H1", (0, 1), [("a", 1)], [(0, 1, 2)], None, [(0.5, 1)], []])
def test_hooks_need_a_list_of_heads_that_the_model_has_and_a_run_of_the_other_text(heads):
    model = model_of("gpt2")
    with pytest.raises(InputError, match=r"expected a list of \(layer, head\)"):
        probe.patch_hooks(model, A, against=B, at="bank", heads=heads)
    with pytest.raises(InputError, match="Cannot hook L2H0 of gpt2: layer is 2, expected 0 to 1"):
        probe.patch_hooks(model, A, against=B, at="bank", heads=[(2, 0)])
    hooks = probe.patch_hooks(model, A, against=B, at="bank", heads=[(0, 1)])
    with pytest.raises(InputError, match="the hooks were made for the"):
        model.bridge.run_with_hooks(torch.tensor([tokenize(model, LONGER).ids]), fwd_hooks=hooks)


def test_a_model_without_logits_is_read_along_the_coordinate_only(tmp_path):
    headless = load(make_family(tmp_path / "bert", "bert", architecture="BertModel"))
    with pytest.raises(UnsupportedModel, match="its checkpoint has no language-model head"):
        probe.patch(headless, A, against=B, at="bank", metric=TOKENS)
    assert len(probe.patch(headless, A, against=B, at="bank")) == LAYERS * 4


# --- the axis of several pairs --------------------------------------------------------------------

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


def eight_pairs(seed, vocabulary):
    """Eight pairs of texts of six random tokens; the members of a pair differ in the third token."""
    rng = np.random.default_rng(seed)
    a, b = [], []
    for _ in NUMBERS:
        words = rng.choice(vocabulary, size=7, replace=False).tolist()
        replacement = words.pop()
        a.append(" ".join(words))
        b.append(" ".join([*words[:2], replacement, *words[3:]]))
    return a, b


@pytest.mark.campaign
def test_no_head_of_a_random_model_moves_several_pairs_significantly():
    """Along the direction of the pair itself, every head that writes anything moves the pair: all
    of twelve random models had a head with p < .05. Along the direction of the other pairs, at most
    two models have one.
    """
    significant = 0
    for seed in range(12):
        model = random_model(seed=seed)
        vocabulary = sorted(token for token in model.tokenizer.get_vocab() if token.isalpha())
        a, b = eight_pairs(seed, vocabulary)
        swaps = probe.patch(model, a, against=b, at=-1)
        assert swaps.attrs["axis"] == "others"
        by_pair = swaps.pivot(index="pair", columns=["layer", "head"], values="swap")
        significant += sign_flip_test(by_pair, by_pair.index).p.min() < 0.05
    assert significant <= 2


def test_a_pair_is_read_along_the_mean_direction_of_the_pairs_that_share_no_text_with_it(tiny):
    cues = ["river", "muddy", "flooded", "mossy"]
    a = [f"The {cue} bank" for cue in cues]
    b = [f"The {cue} bank" for cue in ("savings", "central", "national", "private")]
    frame = probe.patch(tiny, a, against=b, at="bank")
    model = load(tiny)
    ends = [
        target_states(model, [tokenize(model, text)], [len(tokenize(model, text)) - 1]).resid[0, -1]
        for text in (*a, *b)
    ]
    differences = [(of_a - of_b).double() for of_a, of_b in zip(ends[:4], ends[4:], strict=True)]
    for number, difference in enumerate(differences):
        mean_of_others = torch.stack(
            [each for n, each in enumerate(differences) if n != number]
        ).mean(0)
        expected = float(difference @ mean_of_others / mean_of_others.square().sum())
        gap = frame.loc[frame["pair"] == number, "gap"]
        assert gap.nunique() == 1 and gap.iloc[0] == pytest.approx(expected, rel=1e-4)
    # With three pairs, or if two pairs share a text, some pair has fewer than three others.
    assert probe.patch(tiny, a[:3], against=b[:3], at="bank").attrs["axis"] == "own"
    shared = probe.patch(tiny, a, against=[*b[:3], b[0]], at="bank")
    assert shared.attrs["axis"] == "own"


def test_pairs_with_equal_tokens_up_to_the_word_are_merged(tiny):
    a = ["The river bank", "The muddy bank", "The river bank was old"]
    b = ["The savings bank", "The central bank", "The savings bank was new"]
    frame = probe.patch(tiny, a, against=b, at="bank")
    assert frame["pair"].unique().tolist() == [0, 1] and frame.attrs["merged"] == 1
    both_ways = probe.patch("tiny-senses-bidirectional", a, against=b, at="bank")
    assert both_ways["pair"].nunique() == 3 and both_ways.attrs["merged"] == 0


def test_logits_that_are_computed_in_parts_give_the_same_numbers(monkeypatch):
    model = model_of("gpt2")
    whole = probe.patch(model, A, against=B, at="bank", metric=own_metric)
    monkeypatch.setattr(patching, "LOGITS", 1)
    pd.testing.assert_frame_equal(
        probe.patch(model, A, against=B, at="bank", metric=own_metric), whole, rtol=0, atol=1e-12
    )
