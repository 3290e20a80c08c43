"""The parts of a head's effect in models with a known answer."""

from functools import cache

import numpy as np
import plain_forward
import pytest
import torch
from families import family_model, near
from handmade import (
    HEADS,
    LAYERS,
    WORD,
    make_sentences,
    random_model,
    resolver_model,
    without,
)
from hooked_runs import target_z
from inside import (
    TargetText,
    drawn_effects,
    effects_of,
    head_parts,
    observe,
    pairs_of,
    prepare,
    prepare_pairs,
    read_weights,
    resampling,
    swap_effect,
)
from measured import options_of, studied
from seeds import mostly_campaign

from probe.experiments.columns import dataset
from probe.patching.inputs import target_texts

SENTENCES = make_sentences(cues=16)
PAIRS = 64  # of sentences in which heads are swapped
EXPERIMENTS = ("heads", "head_parts")


@cache
def study(seed):
    """The record of a word in a model with one resolver, the model, and the resolver's layer and
    head.
    """
    model, resolver = resolver_model(seed)
    return parts_of(model, SENTENCES, seed), model, resolver


def parts_of(model, sentences, seed=0):
    """The record of a word with the parts of its heads."""
    material = prepare(model, WORD, sentences)
    return studied(model, material, seed=seed, pairs=PAIRS, experiments=EXPERIMENTS)


def table_of(record):
    """The table of the parts of heads, with the shares by kind: `layer head` each, if measured."""
    table = head_parts.with_intervals(record, record.measured["head_parts"])
    shares = {kind: by_head(table[kind]) for kind in head_parts.KINDS if table[kind].notna().any()}
    return table, shares


def by_head(column):
    return column.to_numpy().reshape(LAYERS, HEADS)


@pytest.fixture(scope="module", params=mostly_campaign([0, 1, 2, 3]))
def planted(request):
    """The shares of the head parts in such a model, the resolver, and the record."""
    record, _, resolver = study(request.param)
    return table_of(record)[1], resolver, record


def test_a_resolver_carries_the_sense_from_the_cue_and_looks_where_it_always_looks(
    planted,
):
    shares, resolver, _ = planted
    expected_shares = {"values_only": 1, "cue_only": 1, "pattern_only": 0, "ablation": 1}
    # The pairs differ in the cue only, so other_only is absent. Without the head, the gap is lost.
    assert set(shares) == set(expected_shares)
    for name, expected in expected_shares.items():
        assert shares[name][resolver] == pytest.approx(expected, abs=0.02), name
        assert shares[name].shape == (LAYERS, HEADS)
        assert (
            np.abs(
                np.delete(shares[name].ravel(), np.ravel_multi_index(resolver, (LAYERS, HEADS)))
            ).max()
            < 0.02
        )


def measured(whole, *, texts=None, cues=None):
    """The shares of the parts, with other texts or other cues."""
    observation, pair, effects, model = whole
    inputs = (
        read_weights(model),
        texts or observation.texts,
        observation.states.z,
        cues or observation.material.cues,
    )
    numbers, shifts = head_parts.swap_parts(
        *inputs, swap_effect(effects), axes=pair.sense.axes, pairs=pair.pairs, readout=pair.readout
    )
    shares = shifts.sum(0) / effects["gap"][numbers].sum(0)[:, None]
    by_kind = dict(zip(head_parts.KINDS, shares, strict=True))
    return {kind: share for kind, share in by_kind.items() if not np.isnan(share).all()}


@pytest.fixture(scope="module")
def whole():
    """The observation, the prepared pair, the whole effects and the model of seed 0."""
    record, model, _ = study(0)
    observation = observe(model, prepare(model, WORD, SENTENCES), seed=0)
    [pair] = prepare_pairs(observation, None, options_of(pairs=PAIRS))
    return observation, pair, effects_of(record.of_pairs("heads")[0]), model


def test_without_aligned_pairs_only_the_cue_and_the_ablation_are_measured():
    model, resolver = resolver_model(0)
    _, shares = table_of(parts_of(model, without(SENTENCES, "pair")))
    assert set(shares) == {"cue_only", "ablation"}
    for values in shares.values():
        assert values[resolver] == pytest.approx(1, abs=0.1)


def test_pairs_of_unequal_length_are_measured_without_pattern_and_values(whole):
    record, _, resolver = study(0)
    longer = list(whole[0].texts)
    row = record.senses[0].a.values[record.measured["head_parts"].number.values[0, 0]]
    longer[row] = TargetText((longer[row].ids[0], *longer[row].ids), longer[row].at + 1)
    even, uneven = measured(whole), measured(whole, texts=longer)
    assert set(even) - set(uneven) == {"pattern_only", "values_only"}
    assert uneven["ablation"][resolver] == pytest.approx(1, abs=0.1)


def test_if_a_wrong_cue_is_marked_the_effect_comes_from_the_other_differing_tokens(whole):
    """The cue is marked on the first token of the text, but the head reads the token in which the
    pair differs.
    """
    *_, resolver = study(0)
    first = [range(1) for _ in whole[0].texts]
    wrong, unknown = (measured(whole, cues=cues) for cues in (first, [None] * len(first)))
    assert wrong["cue_only"][resolver] == pytest.approx(0, abs=1e-6)
    assert (
        wrong["other_only"][resolver]
        == unknown["other_only"][resolver]
        == pytest.approx(1, abs=0.02)
    )
    assert "cue_only" not in unknown


def test_intervals_resample_the_same_frames_and_cue_words_as_the_whole_swap():
    """A part that equals the whole swap has the interval of the whole swap."""
    record = study(0)[0]
    [senses] = record.senses
    pairs = pairs_of(senses)
    effects, units = effects_of(record.of_pairs("heads")[0]), len(set(pairs.units))
    both_ways = (effects["denoise"] + effects["noise"]) / 2
    whole = np.stack([both_ways] * len(head_parts.KINDS), axis=1)
    data = dataset(
        head_parts.TABLES,
        {
            "shift": ("pair sentence_pair kind layer head", whole[None]),
            "gap": ("pair sentence_pair layer", effects["gap"][None]),
            "number": ("pair sentence_pair", [range(len(pairs))]),
        },
        senses=[(senses.sense_a.item(), senses.sense_b.item())],
        coordinates={"kind": ("kind", head_parts.KINDS)},
    )
    table = head_parts.with_intervals(record, data)
    swap = swap_effect(effects)
    np.testing.assert_allclose(by_head(table["values_only"]), swap, atol=1e-12)
    draws = drawn_effects(effects, pairs.bootstrap())["swap"]
    expected = resampling.interval(draws, swap, units=units)
    for end, limit in zip(("low", "high"), expected, strict=True):
        np.testing.assert_allclose(by_head(table[f"values_only_{end}"]), limit, atol=1e-12)


def test_the_intervals_contain_the_planted_shares(planted):
    """There are pairs of several cue words and frames; the interval of pattern_only is narrow and
    around 0.
    """
    shares, resolver, record = planted
    pairs = pairs_of(record.senses[0]).take(record.measured["head_parts"].number.values[0])
    assert len(set(pairs.units)) == len(pairs) == head_parts.MOST_PAIRS
    assert len(set(pairs.frames)) > 1
    table, _ = table_of(record)
    assert (table["pairs"] == head_parts.MOST_PAIRS).all()
    for kind, share in shares.items():
        low, high = (by_head(table[f"{kind}_{end}"]) for end in ("low", "high"))
        assert (low <= share + 1e-12).all() and (share <= high + 1e-12).all()
        assert (kind != "pattern_only") <= (high[resolver] > low[resolver])
        assert high[resolver] - low[resolver] < 0.1
        assert low[resolver] - 0.02 < {"pattern_only": 0}.get(kind, 1) < high[resolver] + 0.02


def test_only_the_top_heads_have_parts(whole, monkeypatch):
    shares_of_all = measured(whole)
    monkeypatch.setattr(head_parts, "MOST_HEADS", 3)
    shares_of_top = measured(whole)
    top = np.argsort(-np.abs(swap_effect(whole[2])).ravel())[:3]
    for name in ("pattern_only", "values_only", "cue_only", "ablation"):
        top_shares, all_shares = shares_of_top[name].ravel(), shares_of_all[name].ravel()
        assert np.flatnonzero(~np.isnan(top_shares)).tolist() == sorted(top.tolist())
        np.testing.assert_allclose(top_shares[top], all_shares[top], atol=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "qwen3_5_text"])
def test_parts_of_z_are_pattern_times_values_and_sum_to_z(kind):
    model = family_model(kind, torch.float64)
    weights, generator = read_weights(model), torch.Generator().manual_seed(2)
    ids = [
        torch.randint(5, model.config.d_vocab, (size,), generator=generator).tolist()
        for size in (7, 5, 7)
    ]
    rows = [TargetText(tuple(row), at) for row, at in zip(ids, (6, 2, 4), strict=True)]
    texts = target_texts(weights, rows, "Testing")
    in_part = [[0, 3], [1], []]
    in_rest = [
        [pos for pos in range(len(text.ids)) if pos not in positions]
        for text, positions in zip(texts, in_part, strict=True)
    ]
    no_positions = [[] for _ in texts]
    removed = {"part": (in_part, no_positions), "rest": (in_rest, no_positions)}
    whole = target_z(model, texts)
    remaining = head_parts.head_part_z(weights, texts, texts, removed, mixed=False)
    part = whole - remaining["part"]
    torch.testing.assert_close(remaining["part"] + remaining["rest"], whole, **near(kind))
    for row, text in enumerate(texts):
        for layer, step in enumerate(
            plain_forward.run(weights, torch.tensor(text.ids), torch.float64)
        ):
            if not model.config.has_heads(layer):
                assert (remaining["part"][row, layer] == 0).all()
                continue
            read = step["pattern"][:, text.at, :, None] * step["v"]  # head key_pos d_head
            gate = step["z"][:, text.at] / read.sum(1)  # 1 without gated heads
            expected = gate * read[:, in_part[row]].sum(1)
            torch.testing.assert_close(part[row, layer], expected, **near(kind))


@pytest.mark.parametrize(
    ("ids", "other_ids", "differ"),
    [
        ([1, 2, 3, 4], [1, 5, 3, 6], [1, 3]),
        ([1, 2, 2, 3, 4], [1, 7, 3, 4], [1, 2]),
        ([1, 7, 3, 4], [1, 2, 2, 3, 4], [1]),
        ([1, 2, 2, 3], [1, 2, 3], [2]),
        ([1, 2, 3], [1, 2, 2, 3], []),
        ([1, 2], [1, 2], []),
    ],
)
def test_the_positions_at_which_texts_differ(ids, other_ids, differ):
    assert head_parts.differing_positions(ids, other_ids) == differ


@pytest.mark.parametrize("same", [True, False])
def test_mixed_z_is_the_pattern_of_one_run_times_the_values_of_the_other(same):
    model = random_model(torch.float64)
    weights = read_weights(model)
    generator = torch.Generator().manual_seed(2)
    looking, carrying = (
        torch.randint(model.config.d_vocab, (3, 7), generator=generator).tolist() for _ in range(2)
    )
    looking = [*looking, [5, 6, 7]]
    carrying = [*carrying, [8, 9, 10]]
    carrying = looking if same else carrying
    recipients = target_texts(weights, carrying, "Testing")
    donors = target_texts(weights, looking, "Testing")
    mixed = head_parts.head_part_z(weights, recipients, donors, {}, mixed=True)["pattern_only"]
    if same:
        torch.testing.assert_close(mixed, target_z(model, looking), rtol=0, atol=1e-12)
    for row, (donor_ids, recipient_ids) in enumerate(zip(looking, carrying, strict=True)):
        steps = [
            list(plain_forward.run(weights, torch.tensor(ids), torch.float64))
            for ids in (donor_ids, recipient_ids)
        ]
        for layer, (donor_step, recipient_step) in enumerate(zip(*steps, strict=True)):
            expected = torch.einsum("hk,hkd->hd", donor_step["pattern"][:, -1], recipient_step["v"])
            torch.testing.assert_close(mixed[row, layer], expected, rtol=0, atol=1e-12)
