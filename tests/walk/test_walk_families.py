"""The walk over all families: every formula compared with its hook, sums, the page's numbers and
the trace's, the steps.
"""

import re
from itertools import product

import numpy as np
import pytest
import torch
from families import PAIRED, SINGLE, each_family, family_model, make_family
from inside import FAMILIES, attention, read_stacks, render, scene
from inside import WALK_TABLES as TABLES
from test_walk import unpacked

import probe
from probe.walks import block

SOURCE, TARGET, WORD = "He sat by the river near the bank", "a fluffy river roamed", "river"
# Families whose tiny models have windows of five tokens.
SMALL = tuple(
    kind
    for kind in SINGLE
    if {"sliding_window", "window_size", "local_attention"} & FAMILIES[kind].tiny_config.keys()
)
SINGLE = tuple(kind for kind in SINGLE if kind not in SMALL)
CAUSAL = {kind: FAMILIES[kind].kind == "decoder" for kind in SINGLE}
STEPS = [
    "tokens",
    "layernorm",
    "qkv",
    "scores",
    "mask",
    "softmax",
    "values",
    "sum",
    "heads",
    "layers",
    "parameters",
]
MANIFEST = {
    "model": "m",
    "origin": {"kind": "folder", "location": "here", "revision": None},
    "described": "folder: here",
    "dtype": "float32",
}
MANIFEST |= {"weights_sha256": "0", "command": "probe walk", "versions": {}}


def walk_of(kind, text=SOURCE, **options):
    target = {"target": TARGET} if kind in PAIRED else {}
    return probe.walk(family_model(kind), text, **target, at=WORD, **options)


@pytest.fixture(scope="module", params=each_family(*SINGLE, *PAIRED))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def walked(kind):
    return walk_of(kind)


@pytest.fixture(scope="module")
def traced(kind):
    model = family_model(kind)
    return (
        probe.trace(model, SOURCE, TARGET).cross if kind in PAIRED else probe.trace(model, SOURCE)
    )


def close(actual, expected, **tolerances):
    actual, expected = (
        torch.as_tensor(np.array(part) if isinstance(part, np.ndarray) else part)
        for part in (actual, expected)
    )
    torch.testing.assert_close(actual.double(), expected.double(), **tolerances)


def test_every_formula_agrees_with_its_hook_in_every_layer(walked, kind):
    rows = walked.frames["agreement"]
    assert rows["error"].max() < 1e-5
    steps = (
        10 if family_model(kind).config.family.adds_plainly else 11
    )  # the norm of the sum is a separate step
    assert rows.groupby("layer").size().tolist() == [steps, steps]
    assert set(rows["function"]) >= {
        "attention.project",
        "attention.softmax",
        "attention.mix",
        "blocks.merge_heads",
    }
    assert walked.certificate.ok and set(walked.certificate.texts) >= {SOURCE}


def test_the_page_carries_the_scores_of_the_head_that_it_follows_by_pairs_of_parts(walked, traced):
    scores = walked.block["scores"]
    assert (scores["layer"], scores["head"]) == (walked.layer, walked.head)
    hooked = traced.scores[walked.layer, walked.head]
    cap = walked.block["cap"]
    causal = walked.block["causal"]
    for at, row in scores["rows"].items():
        assert list(row["scores"]) == [*range(at + 1 if causal else hooked.shape[1])]
        for key, split in row["scores"].items():
            values = [value for *_, value in split["pairs"]]
            terms = [*values, split["others"]]
            # every number has six digits
            rounding = 5e-6 * sum(map(abs, [*terms, split["score"]]))
            assert abs(sum(terms) - split["score"]) <= rounding
            assert values == sorted(values, key=abs, reverse=True)
            assert len(values) <= block.MOST_PAIRS
            if not cap:
                assert split["score"] == pytest.approx(float(hooked[at, key]), rel=1e-4, abs=1e-4)
        numbers_of_parts = {
            number
            for split in row["scores"].values()
            for *two, _ in split["pairs"]
            for number in two
        }
        assert numbers_of_parts == {*range(len(row["parts"]))}


def test_the_steps_and_tables_follow_the_family(walked, kind):
    config, page = family_model(kind).config, render(walked, MANIFEST)
    family, sections = config.family, re.findall(r'<section id="(\w+)"', page)
    extra_sections = [
        "embedding" if kind in SINGLE else "word",
        *["scaling"] * family.divides_scores,
    ]
    assert sorted(sections) == sorted([*STEPS, *extra_sections, "certificate", "tables"])
    absent = [
        "contrast",
        "trace",
        *["embedding"] * (kind in PAIRED),
        *["layer_norm"] * (not family.norm_first),
    ]
    assert list(walked.frames) == [name for name in TABLES if name not in absent]
    assert ("reads both ways" in page) == (kind in SINGLE and not config.causal)
    assert ("attention.mask(scores)" in page) == CAUSAL.get(kind, False)
    assert ("of this model comes after the sum" in page) == family.norm_after_sum
    rotated = not (config.positions.unrotated and config.positions.unrotated[walked.layer])
    assert ("are rotated by angles" in page) == (config.positions.kind == "rotary" and rotated)
    assert ("share 2 sets of keys and values" in page) == (config.n_kv_heads == 2)
    assert ("The MLP of this model reads E, not E′" in page) == family.parallel_attn_mlp
    model = family_model(kind)
    block = next(iter(read_stacks(model.weights, config).values())).blocks[0]
    assert ("three matrices and no biases" in page) == (block.b_q is block.b_k is block.b_v is None)
    assert ("pass norms of their own" in page) == (block.norm_q is not None)


@pytest.mark.parametrize("kind", ["olmo2", "gemma2", "gemma3_text"])
def test_where_a_family_norms_its_writes_the_sum_shows_it_and_a_head_moves_by_what_is_added(kind):
    model = family_model(kind)
    walked, trace = probe.walk(model, "the bank"), probe.trace(model, "the bank")
    assert (
        walked.frames["agreement"].query("step.str.startswith('E + RMSNorm')")["error"].max() < 1e-5
    )
    assert "E′ = E + RMSNorm(ΔE + ΔE of the other 3)" in render(walked, MANIFEST)
    view = scene.AttentionView.of_self_attention(trace)
    for layer in range(model.config.n_layers):
        writes = attention.write(trace.z[layer], view.weights.blocks[layer].w_o)
        added = trace.resid_mid[layer] - trace.resid_pre[layer]
        assert torch.allclose(
            view.as_added(layer, writes).sum(0), added, atol=1e-5 * added.abs().max()
        )
    assert (
        walked.frames["sums"].query("term == 'difference'")["norm"].item()
        < 1e-5 * trace.resid_mid.norm()
    )


@pytest.mark.parametrize("kind", each_family(*SMALL))
def test_a_text_longer_than_the_window_is_refused_and_a_shorter_one_is_walked(kind):
    model = family_model(kind)
    n = len(probe.trace(model, SOURCE).tokens)
    with pytest.raises(probe.InputError) as refused:
        probe.walk(model, SOURCE)
    assert str(refused.value) == (
        f"Cannot walk a text through {kind}: it has {n} tokens, and some layers have a window of 5, so "
        "one mask would not do. Give a text of at most 5 tokens."
    )
    assert probe.walk(model, "the bank").frames["agreement"]["error"].max() < 1e-5


def test_the_tables_equal_the_trace_and_the_mask_is_a_triangle_a_square_or_a_rectangle(
    walked, traced, kind
):
    layer, head, at = walked.layer, walked.head, walked.at
    cells_of = walked.frames["attention"]
    table, score, allowed = (
        cells_of.pivot(index="query_pos", columns="key_pos", values=name).to_numpy()
        for name in ("pattern", "score", "allowed")
    )
    n, m = table.shape
    assert np.array_equal(
        allowed, np.tri(n, dtype=bool) if CAUSAL.get(kind) else np.ones((n, m), dtype=bool)
    )
    assert (n == m) == (kind in SINGLE)
    assert ("open" in cells_of) == CAUSAL.get(kind, False) == walked.block["causal"]
    close(table, traced.pattern[layer, head], rtol=1e-5, atol=1e-12)
    close(score[allowed], traced.scores[layer, head].numpy()[allowed], rtol=1e-4, atol=1e-5)
    values, parts = walked.frames["values"], traced.delta_e_by_source(layer, head, at)
    whole = traced.delta_e(layer, head, at)
    keys = values["pos"].tolist()
    close(values["norm"].to_numpy(), parts[keys].norm(dim=-1), rtol=1e-4, atol=1e-8)
    close(values["share"].to_numpy(), (parts @ whole / (whole @ whole))[keys], rtol=1e-3, atol=1e-6)
    assert values["share"].sum() == pytest.approx(1, abs=1e-5) and values[
        "weight"
    ].sum() == pytest.approx(1, abs=1e-5)
    summed = values[["p0", "p1", "p2", "p3"]].sum().to_numpy()
    close(summed, whole[:4], rtol=1e-4, atol=1e-5)
    out = values[["v0", "v1", "v2", "v3"]].to_numpy() * values[["weight"]].to_numpy()
    close(values[["p0", "p1", "p2", "p3"]].to_numpy(), out, rtol=1e-4, atol=1e-5)
    heads = walked.frames["heads"].query(f"layer == {layer} and head == {head}").iloc[0]
    assert heads["norm"] == pytest.approx(whole.norm().item(), rel=1e-5)
    assert heads["weight"] == pytest.approx(traced.pattern[layer, head, at].max().item(), rel=1e-5)


def test_e_and_all_writes_sum_to_the_hooked_e_prime(walked, traced):
    sums = walked.frames["sums"].set_index("term")
    names = ["e0", "e1", "e2", "e3"]
    apart = walked.block["norm_after_write"]  # the heads' writes are normed before E is added
    terms = [term for term in ("E", "ΔE", "other heads", "b_O")[apart:] if term in sums.index]
    close(
        sums.loc[terms, names].sum().to_numpy(),
        sums.loc["sum", names].to_numpy(float),
        rtol=1e-4,
        atol=1e-4,
    )
    last = "norm of the sum" if "norm of the sum" in sums.index else "sum"
    hooked = traced.resid_mid[walked.layer, walked.at]
    after = sums.loc[[last, "E"] if apart else [last], names].sum().to_numpy(float)
    close(after, hooked[:4], rtol=1e-4, atol=1e-4)
    assert sums.loc["difference", "norm"] < 1e-4 * hooked.norm().item()


def test_the_page_carries_every_head_at_every_token(walked, traced):
    layers, heads, n = traced.pattern.shape[:3]
    assert walked.block["heads"] == [
        [layer, head] for layer in range(layers) for head in range(heads)
    ]
    close(unpacked(walked, "pattern"), traced.pattern.flatten(0, 1))
    lengths = unpacked(walked, "pattern") * unpacked(walked, "out_norm")[:, None]
    for c, (layer, head) in enumerate(walked.block["heads"]):
        for at in range(n):
            parts, whole = (
                traced.delta_e_by_source(layer, head, at),
                traced.delta_e(layer, head, at),
            )
            close(lengths[c, at], parts.norm(dim=-1), rtol=1e-4, atol=1e-6)
            close(
                unpacked(walked, "share")[c, at],
                parts @ whole / (whole @ whole),
                rtol=1e-3,
                atol=1e-5,
            )
            assert unpacked(walked, "delta_norm")[c, at] == pytest.approx(
                whole.norm().item(), rel=1e-5
            )
    # Keys and values that several heads share are in the page once.
    sharing = heads // traced.stack.config.n_kv_heads
    for name in ("k", "v"):
        every_head = getattr(traced, name).flatten(0, 1)[..., :6]
        assert walked.block["arrays"][name]["shared_by"] == sharing
        close(unpacked(walked, name).repeat(sharing, 0), every_head)
    assert "pattern_rest" not in walked.block["arrays"]


@pytest.mark.parametrize("kind", each_family(*SINGLE), indirect=True)
def test_cutting_the_text_after_the_word_changes_it_only_in_models_that_read_both_ways(
    walked, kind
):
    assert walked.truncation_change < 1e-5 if CAUSAL[kind] else walked.truncation_change > 1e-3
    traces = [
        probe.trace(family_model(kind), text)
        for text in (SOURCE, SOURCE[: SOURCE.index(WORD) + len(WORD)])
    ]
    whole, truncated = (trace.resid_post[:, walked.at] for trace in traces)
    assert walked.truncation_change == pytest.approx(
        ((whole - truncated).abs().max() / whole.abs().max()).item(), abs=1e-7
    )


@pytest.mark.parametrize("kind", each_family(*SINGLE), indirect=True)
def test_the_head_that_takes_most_from_the_content_words_it_may_see_is_followed(
    walked, traced, kind
):
    at, tokens = walked.at, traced.tokens
    word = set(tokens.positions_of(WORD))
    word_spans = [(SOURCE.index(name), SOURCE.index(name) + len(name)) for name in ("sat", "bank")]
    overlaps = [
        any(low < end and high > start for start, end in word_spans) for low, high in tokens.spans
    ]
    sources = [
        pos for pos, content in enumerate(overlaps) if content and not (CAUSAL[kind] and pos > at)
    ]
    assert not word & set(sources)
    view, layers = scene.AttentionView.of_self_attention(traced), range(traced.z.shape[0])
    sizes = {}
    for layer, head in product(layers, range(traced.z.shape[1])):
        added = view.as_added(layer, traced.attn_out[layer, at], at)
        write = traced.delta_e_by_source(layer, head, at)[sources].sum(0)
        after = (traced.resid_pre[layer, at] + added).norm()
        sizes[layer, head] = (view.as_added(layer, write, at).norm() / after).item()
    assert (walked.layer, walked.head) == max(sizes, key=sizes.__getitem__)
    heads = walked.frames["heads"].set_index(["layer", "head"])["from_content"]
    assert heads.to_dict() == pytest.approx(sizes, rel=1e-4)
    size = f"{100 * max(sizes.values()):.0f}\u202f% of the vector's length"
    assert walked.statements["why"][0][1].endswith(f"moves “{WORD}”: {size}")


def test_a_long_text_is_drawn_in_part_and_counted_whole(kind):
    long = f"{SOURCE} {SOURCE} by"
    walked = walk_of(kind, long)
    weights = walked.frames["values"]["weight"]
    n = len(probe.tokenize(family_model(kind), long))
    source_positions = [token["pos"] for token in walked.block["source"]]
    assert n > scene.MAX_DRAWN_WHOLE and walked.block["n_undrawn"] == n - len(source_positions)
    assert len(source_positions) == (
        min(scene.DRAWN_OF_LONG, walked.at + 2) if CAUSAL.get(kind) else scene.DRAWN_OF_LONG
    )
    assert len(walked.frames["attention"]) == len(source_positions) * len(walked.block["tokens"])
    assert weights.sum() == pytest.approx(1, abs=1e-4)
    if kind in SINGLE:
        assert walked.at in source_positions and source_positions == [
            token["pos"] for token in walked.block["tokens"]
        ]
    for name in ("pattern", "share"):
        together = unpacked(walked, name).sum(-1) + unpacked(walked, f"{name}_rest")
        close(together, np.ones_like(together), rtol=0, atol=1e-4)
    order = weights.to_numpy().argsort()[::-1][:5]
    assert set(walked.frames["values"]["pos"].to_numpy()[order]) <= set(source_positions)


def test_the_stream_ends_in_the_predictions_of_the_model(walked, kind):
    model = family_model(kind)
    stream = (
        probe.trace(model, SOURCE, TARGET).decoder if kind in PAIRED else probe.trace(model, SOURCE)
    )
    lens, nearest = walked.frames["lens"], walked.frames["nearest"]
    last = lens[lens["depth"] == lens["depth"].max()]
    next_tokens = torch.softmax(stream.logits[walked.at], -1).topk(5)
    close(last["probability"].to_numpy(), next_tokens.values, rtol=1e-3, atol=1e-9)
    assert last["token"].tolist() == [
        model.tokenizer.decode([token]) for token in next_tokens.indices.tolist()
    ]
    table = model.weights[model.config.family.embed + ".weight"]
    cosines = torch.cosine_similarity(stream.resid_post[-1, walked.at], table, dim=-1)
    best = nearest[(nearest["depth"] == nearest["depth"].max()) & (nearest["rank"] == 1)]
    assert best["cosine"].item() == pytest.approx(cosines.max().item(), rel=1e-4)


def test_without_a_language_model_head_there_are_no_next_tokens(tmp_path):
    model = probe.load(make_family(tmp_path / "bert", "bert", architecture="BertModel"))
    walked = probe.walk(model, SOURCE, at=WORD)
    assert "lens" not in walked.frames and "nearest" in walked.frames
    assert "There is no logit lens: the checkpoint holds no language-model head." in render(
        walked, MANIFEST
    )


@pytest.mark.parametrize("kind", ["llama", "bert"], indirect=True)
def test_a_model_in_double_precision_is_walked_too(kind):
    rows = probe.walk(family_model(kind, torch.float64), SOURCE, at=WORD).frames["agreement"]
    assert rows["error"].max() < 1e-6


def test_the_page_of_a_model_whose_first_layer_norms_nothing_says_so():
    """Its windows have five tokens, so the text is short."""
    walked = probe.walk(family_model("modernbert"), "a river", at="river")
    rows = walked.frames["agreement"].query("layer == 0")
    assert rows["step"].iloc[0] == "x = E" and rows["error"].max() < 1e-5
    page = render(walked, MANIFEST)
    assert "Layer 0 has no such norm: it reads the embeddings, which went through one" in page
    page_of_llama = render(walk_of("llama"), MANIFEST)
    assert "Layer 0 has no such norm" not in page_of_llama
