"""QK and OV attribution: the parts sum to the model's numbers in every family, and include the
feature that a hand-built head responds to."""

import dataclasses
import math
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from families import EACH_HYBRID, PAIRED, REPRESENTATIVES, SINGLE, each_family, family_model
from handmade import Head, make_handmade, random_model, resolver_model, write_vector
from inside import axes, read_weights, residual_stream
from planted import copier

import probe
from probe import CrossCheckError, InputError, UnsupportedModel
from probe.studies import attribution

TEXT = "The mole dug under the river bank after the flood"
TARGET = "The apple bank soon"
OTHER = "Some people like the river bank and some do not"
# Rules that no representative has: norms of queries and keys, per head and jointly; rotary positions
# in some layers, of neighbouring pairs, of some dimensions; windows on both sides; norms of writes; a
# parallel block; fused grouped heads.
RULES = ("qwen3", "olmo2", "smollm3", "gptj", "gpt_neox", "modernbert")
RULES += ("falcon", "gemma3_text")
EACH = [
    pytest.param(*kind.values, torch.float64, marks=kind.marks)
    for kind in (*each_family(*SINGLE, also=RULES), *EACH_HYBRID)
]
EACH += [(kind, torch.float32) for kind in REPRESENTATIVES if kind in SINGLE]


def bound(model):
    """The tolerance of a sum, as a share of the scale."""
    if model.dtype == torch.float32:
        return 1e-5
    return 3e-6 if model.config.family.in_float32 else 1e-10


def layers_with_heads(model):
    return [layer for layer in range(model.config.n_layers) if model.config.has_heads(layer)]


@pytest.mark.parametrize("kind", each_family(*PAIRED, also=("bart", "marian", "mbart")))
@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
def test_the_parts_sum_to_every_score_of_an_encoder_decoder(kind, stack):
    model = family_model(kind, torch.float64)
    pair = probe.trace(model, TEXT, TARGET)
    side = getattr(pair, stack)
    for layer, head, at, source in ((0, 1, 2, 1), (1, 3, -1, 2)):
        row = side.scores[layer, head, at].double()
        scale = float(row.abs().clamp_max(1e6).max())
        for by in ("part", "source", "layer"):
            parts = probe.qk_attribution(
                model, pair, layer=layer, head=head, at=at, source=source, by=by, stack=stack
            )
            assert abs(parts["score"].sum() - float(row[source])) <= bound(model) * scale
            assert not parts.duplicated(["part_query", "part_key"]).any()


def before_the_cap(scores, model):
    cap = model.config.attn_logit_softcapping
    return cap * torch.atanh(scores / cap) if cap else scores


@pytest.mark.parametrize(("kind", "dtype"), EACH)
def test_the_parts_sum_to_the_score_of_the_model(kind, dtype):
    model = family_model(kind, dtype)
    whole = probe.trace(model, TEXT)
    word = whole.tokens.positions_of("bank")[-1]
    for layer in layers_with_heads(model):
        for head, source in ((0, word), (model.config.n_heads - 1, word - 1)):
            row = whole.scores[layer, head, word].double()
            scale = float(row[: word + 1].abs().clamp_max(1e6).max())
            for by in ("part", "source", "layer"):
                parts = probe.qk_attribution(
                    model, TEXT, layer=layer, head=head, at="bank", source=source, by=by
                )
                total = torch.tensor(parts["score"].sum())
                error = float((total - before_the_cap(row[source], model)).abs())
                assert error <= bound(model) * scale
                assert not parts.duplicated(["part_query", "part_key"]).any()


def by_hand(model, block, vector, total, weight, pos):
    """A part of the stream as a query or a key: with the norm's scale of the total, and with pairs
    of coordinates rotated as complex numbers."""
    config = model.config
    if config.family.norm == "LayerNorm":
        vector = vector - vector.mean()
        scale = (total.var(unbiased=False) + config.epsilon).sqrt()
    else:
        scale = (total.square().mean() + config.epsilon).sqrt()
    projected = (vector / scale * block.norm.double()) @ weight.double()
    if config.positions.kind != "rotary":
        return projected
    half = config.d_head // 2
    exponents = torch.arange(half, dtype=torch.float64) / half
    angles = pos * config.positions.base**-exponents
    rotated = torch.complex(projected[:half], projected[half:]) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat([rotated.real, rotated.imag])


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_score_of_a_pair_of_parts_follows_the_formula(kind):
    model = family_model(kind, torch.float64)
    whole = probe.trace(model, TEXT)
    at, source = whole.tokens.positions_of("bank")[-1], whole.tokens.positions_of("river")[-1]
    block = read_weights(model).blocks[1]
    head, kv_head = 3, 3 * model.config.n_kv_heads // model.config.n_heads
    first = read_weights(model).blocks[0]
    embedding = model.weights[model.config.family.embed + ".weight"]
    query_parts = {"MLP 0": whole.mlp_out[0, at], "L0H2": whole.z[0, 2, at] @ first.w_o[2]}
    key_parts = {
        "token embedding": embedding[whole.tokens.ids[source]],
        "MLP 0": whole.mlp_out[0, source],
    }
    parts = probe.qk_attribution(model, TEXT, layer=1, head=head, at=at, source=source).set_index(
        ["part_query", "part_key"]
    )["score"]
    for a, query in query_parts.items():
        for b, key in key_parts.items():
            q = by_hand(model, block, query, whole.resid_pre[1, at], block.w_q[head], at)
            k = by_hand(model, block, key, whole.resid_pre[1, source], block.w_k[kv_head], source)
            expected = float(q @ k) / math.sqrt(model.config.d_head)
            assert parts[a, b] == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_a_contrast_is_a_difference_of_scores(kind):
    model = family_model(kind, torch.float64)
    whole, other_trace = probe.trace(model, TEXT), probe.trace(model, OTHER)
    at, source = (whole.tokens.positions_of(word)[-1] for word in ("bank", "river"))
    there = other_trace.tokens.positions_of("bank")[-1]
    row = whole.scores[1, 2, at]
    of_text = [pos for pos, (start, end) in enumerate(whole.tokens.spans) if start < end]
    read = of_text if kind == "bert" else [pos for pos in of_text if pos < at]
    other_positions = [pos for pos in read if pos not in (at, source)]
    dug = whole.tokens.positions_of("dug")[-1]
    expected = {
        "dug": row[source] - row[dug],
        1: row[source] - row[1],
        "mean": row[source] - row[other_positions].mean(),
        OTHER: row[source] - other_trace.scores[1, 2, there, there + source - at],
    }
    scale = float(row[read].abs().max())
    for contrast, difference in expected.items():
        parts = probe.qk_attribution(
            model, TEXT, layer=1, head=2, at="bank", source="river", contrast=contrast
        )
        assert abs(parts["score"].sum() - float(difference)) <= bound(model) * scale


def test_heads_by_source_and_layers_are_sums_of_the_same_parts():
    model = random_model(torch.float64)
    query = {"layer": 2, "head": 1, "at": 6, "source": 4, "contrast": "mean"}
    by = {
        how: probe.qk_attribution(model, TEXT, **query, by=how)
        for how in ("part", "source", "layer")
    }
    whole = by["part"].groupby(["part_query", "part_key"])["score"].sum()
    split = by["source"].replace(r" from .*", "", regex=True)
    assert len(by["source"]) > len(split.drop_duplicates(["part_query", "part_key"]))
    again = split.groupby(["part_query", "part_key"])["score"].sum()
    assert (again - whole).abs().max() <= 1e-12
    layers = by["part"].replace(r"(L|MLP |attention bias )(\d+)(H\d+)?$", r"layer \2", regex=True)
    layers = layers.replace(r".* embedding$", "embedding", regex=True)
    summed = layers.groupby(["part_query", "part_key"])["score"].sum()
    by_layer = by["layer"].set_index(["part_query", "part_key"])["score"]
    assert set(by_layer.index) == set(summed.index)
    assert (by_layer - summed).abs().max() <= 1e-12


def test_a_trace_can_replace_its_text():
    model = random_model(torch.float64)
    whole = probe.trace(model, TEXT)
    for attribute in (probe.qk_attribution, probe.qk_interventions):
        assert attribute(model, whole, **PLACE).equals(attribute(model, TEXT, **PLACE))
    with pytest.raises(InputError, match="the trace is one of"):
        probe.qk_attribution(family_model("gpt2"), whole, **PLACE)
    with pytest.raises(InputError, match="comes from a pickle"):
        probe.qk_attribution(model, pickle.loads(pickle.dumps(whole)), **PLACE)
    bart = family_model("bart")
    with pytest.raises(InputError, match="one side of an encoder-decoder"):
        decoder = probe.trace(bart, TEXT, TARGET).decoder
        probe.qk_attribution(bart, decoder, layer=1, head=2, at=1, source=2)


# --- heads built by hand --------------------------------------------------------------------------

WORDS = tuple(f"word{number}" for number in range(4))  # features that differ between tokens
FREE = ("decoy", "second", "accent", "marker")  # features that these tokens lack
REPEATED = "we saw passed behind near once saw"


@pytest.fixture(scope="module")
def known_heads():
    """L0H1 reads the previous token and copies its word features. L1H2 reads the same token. L2H3
    reads the token after the same token."""
    previous = copier(0, 1, {}, {})
    carries = tuple(({word: 1.0}, {free: 3.0}) for word, free in zip(WORDS, FREE, strict=True))
    previous = dataclasses.replace(previous, carries=carries)
    same = Head(1, 2, tuple(({word: 20.0}, {word: 1.0}) for word in WORDS), ())
    pairs = zip(WORDS, FREE, strict=True)
    induction = Head(2, 3, tuple(({word: 20.0}, {free: 1.0}) for word, free in pairs), ())
    with TemporaryDirectory() as folder:
        return probe.load(make_handmade(Path(folder) / "known", [previous, same, induction]))


@pytest.mark.parametrize(
    ("layer", "head", "source", "pair"),
    [
        (0, 1, "once", ("position embedding", "position embedding")),
        (1, 2, "saw", ("token embedding", "token embedding")),
        (2, 3, "passed", ("token embedding", "L0H1")),
    ],
)
def test_the_right_pair_of_parts_holds_the_contrast(known_heads, layer, head, source, pair):
    whole = probe.trace(known_heads, REPEATED)
    at = len(whole.tokens) - 1
    key = whole.tokens.positions_of(source)[-1]
    assert int(whole.pattern[layer, head, at, :-1].argmax()) == key
    parts = probe.qk_attribution(
        known_heads, REPEATED, layer=layer, head=head, at=at, source=source, contrast="mean"
    )
    share = parts.set_index(["part_query", "part_key"])["score"] / parts["score"].sum()
    assert share.idxmax() == pair
    assert abs(share[pair] - 1) <= 0.05


# --- what a head reads ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*each_family(*SINGLE, also=("olmo2",)), *EACH_HYBRID])
def test_the_parts_of_a_write_sum_to_its_part_of_the_logits(kind):
    model = family_model(kind, torch.float64)
    tokens = (17, 30)
    terms = probe.decompose(model, TEXT, at="bank", tokens=tokens)
    scale = float(terms["logit"].abs().max())
    at = probe.tokenize(model, TEXT).positions_of("bank")[-1]
    for layer in layers_with_heads(model):
        for source in (at, at - 1):
            of_head = terms.query("layer == @layer and head == 1 and pos == @source")["logit"]
            for by in ("part", "source", "layer"):
                parts = probe.ov_attribution(
                    model, TEXT, layer=layer, head=1, at=at, source=source, along=tokens, by=by
                )
                error = abs(float(parts["write"].sum()) - of_head.item())
                assert error <= bound(model) * scale


@pytest.mark.parametrize("kind", each_family(*PAIRED, also=("bart", "marian", "mbart")))
@pytest.mark.parametrize("stack", ["decoder", "cross"])
def test_the_parts_of_a_write_in_a_decoder_sum_to_its_part_of_the_logits(kind, stack):
    model = family_model(kind, torch.float64)
    tokens = (17, 30)
    terms = probe.decompose(model, TEXT, at=2, tokens=tokens, target=TARGET)
    scale = float(terms["logit"].abs().max())
    pair = probe.trace(model, TEXT, TARGET)
    for layer in (0, 1):
        of_head = terms.query("stack == @stack and layer == @layer and head == 1 and pos == 1")
        parts = probe.ov_attribution(
            model, pair, layer=layer, head=1, at=2, source=1, along=tokens, stack=stack
        )
        assert abs(parts["write"].sum() - of_head["logit"].item()) <= bound(model) * scale


def test_cross_attention_is_contrasted_with_tokens_of_the_source_and_with_another_source():
    model = family_model("bart", torch.float64)
    pair, other_pair = (probe.trace(model, text, TARGET) for text in (TEXT, OTHER))
    row = pair.cross.scores[1, 2, 2]
    spans = pair.source.spans
    source = pair.source.positions_of("river")[-1]
    other_positions = [
        pos for pos, (start, end) in enumerate(spans) if start < end and pos != source
    ]
    expected = {
        "mean": row[source] - row[other_positions].mean(),
        "dug": row[source] - row[pair.source.positions_of("dug")[-1]],
        OTHER: row[source] - other_pair.cross.scores[1, 2, 2, source],
    }
    for contrast, difference in expected.items():
        parts = probe.qk_attribution(
            model, TEXT, target=TARGET, layer=1, head=2, at=2, source="river", contrast=contrast
        )
        assert parts["score"].sum() == pytest.approx(float(difference), abs=1e-10)


def test_a_vector_and_a_sense_axis_are_read_at_their_depths():
    model = random_model(torch.float64)
    whole = probe.trace(model, TEXT)
    at = whole.tokens.positions_of("bank")[-1]
    stream, there = (residual_stream(probe.trace(model, text), "bank")[2] for text in (TEXT, OTHER))
    axis = axes.fit_axis(stream[None], there[None], ("one", "other"), 2)
    writes = whole.delta_e_by_source(1, 2, at)
    query = {"layer": 1, "head": 2, "at": at, "source": 3}
    along_axis = probe.ov_attribution(model, TEXT, **query, along=axis)["write"].sum()
    assert along_axis == pytest.approx(float(axis.effect(writes)[3]), rel=1e-10)
    along_vector = probe.ov_attribution(model, TEXT, **query, along=axis.u)["write"].sum()
    assert along_vector == pytest.approx(float(writes[3] @ axis.u), rel=1e-10)
    contrasted = probe.ov_attribution(model, TEXT, **query, along=axis.u, contrast=2)
    assert contrasted["write"].sum() == pytest.approx(float((writes[3] - writes[2]) @ axis.u))


def test_the_write_of_a_resolver_comes_from_the_token_embedding_of_the_cue():
    model, (layer, head) = resolver_model(0)
    resolved = torch.tensor(write_vector({"resolved": 1.0}))
    parts = probe.ov_attribution(
        model,
        "we saw door3 near the lock",
        layer=layer,
        head=head,
        at="lock",
        source="door3",
        along=resolved,
        contrast="we saw canal3 near the lock",
    )
    share = parts.set_index("part_key")["write"] / parts["write"].sum()
    assert abs(share["token embedding"] - 1) <= 0.05


# --- interventions --------------------------------------------------------------------------------


def test_the_attention_needs_the_key_of_the_right_part(known_heads):
    query = {"layer": 2, "head": 3, "at": -1, "source": "passed"}
    effects = probe.qk_interventions(known_heads, REPEATED, **query)
    keys = effects.query("side == 'key'").set_index("part")
    assert keys["score"].idxmax() == keys["attributed"].idxmax() == "L0H1"
    whole = probe.trace(known_heads, REPEATED)
    assert keys.loc["L0H1", "attention"] > 0.9 * float(whole.pattern[2, 3, -1, 3])
    queries = effects.query("side == 'query'").set_index("part")
    assert queries["score"].idxmax() == queries["attributed"].idxmax() == "token embedding"


def test_the_donor_of_an_intervention_is_the_contrast():
    model = random_model(torch.float64)
    by_contrast = {
        contrast: probe.qk_interventions(model, TEXT, **PLACE, contrast=contrast)
        for contrast in ("mean", "dug", OTHER)
    }
    frames = list(by_contrast.values())
    assert not frames[0].equals(frames[1]) and not frames[1].equals(frames[2])
    parts = probe.qk_attribution(model, TEXT, **PLACE)
    source = probe.tokenize(model, TEXT).positions_of("river")[-1]
    unchanged = probe.qk_interventions(model, TEXT, **PLACE, contrast=source).query("side == 'key'")
    assert unchanged[["attributed", "score", "attention"]].abs().to_numpy().max() <= 1e-12
    assert set(unchanged["part"]) == set(parts["part_key"]) - {"norm bias", "key bias"}


def test_the_query_of_another_text_costs_the_difference_of_the_two_contrasts():
    """In layer 0 of a causal model only the token embedding differs between two words at one
    position, and the keys before them are equal."""
    model = random_model(torch.float64)
    view = PLACE | {"layer": 0, "at": probe.tokenize(model, TEXT).positions_of("bank")[-1]}
    other = TEXT.replace("bank", "dog")
    contrasts = [
        probe.qk_attribution(model, text, **view, contrast="mean")["score"].sum()
        for text in (TEXT, other)
    ]
    for query_from in (other, probe.trace(model, other)):
        effects = probe.qk_interventions(model, TEXT, **view, query_from=query_from)
        assert set(effects["side"]) == {"query"}
        lost = effects.set_index("part")["score"]
        assert lost["token embedding"] == pytest.approx(contrasts[0] - contrasts[1], abs=1e-9)
        assert abs(lost["token embedding"]) > 1e-3
    itself = probe.qk_interventions(model, TEXT, **view, query_from=TEXT)
    assert itself[["attributed", "score", "attention"]].abs().to_numpy().max() <= 1e-12


# --- what is refused ------------------------------------------------------------------------------

PLACE = {"layer": 1, "head": 2, "at": "bank", "source": "river"}


EARLY = axes.fit_axis(torch.ones(1, 28), torch.zeros(1, 28), ("one", "other"), 1)
OF_PAIR = {"target": TARGET, "at": 1, "source": 2}
REFUSED = [
    ("qk_attribution", {"layer": 3}, "layer is 3, expected 0 to 2"),
    ("qk_attribution", {"head": -1}, "head is -1, expected 0 to 3"),
    ("qk_attribution", {"source": "flood"}, "reads tokens 0 to"),
    ("qk_attribution", {"contrast": "flood"}, "reads tokens 0 to"),
    ("qk_attribution", {"at": 1, "source": 0, "contrast": "mean"}, "can read no other word"),
    ("qk_attribution", {"by": "head"}, "expected one of 'part', 'source', 'layer'"),
    ("qk_attribution", {"contrast": "A text without the word"}, "bank"),
    ("qk_attribution", {"model": "lfm2", "layer": 0}, "its layer 0 has no attention"),
    ("qk_attribution", {"model": "bart"}, "encoder-decoder. Give trace"),
    ("qk_attribution", {"model": "bart", "stack": "both"} | OF_PAIR, "expected one of 'encoder'"),
    ("qk_interventions", {"query_from": "dog"}, "query_from has 4 tokens, and the query is token"),
    ("qk_interventions", {"model": "bart"}, "Split its scores with probe.qk_attribution"),
    ("ov_attribution", {"along": torch.ones(27)}, r"expected \[28\], the width of the residual"),
    ("ov_attribution", {"along": EARLY}, "fitted after 2 blocks or more"),
    (
        "ov_attribution",
        {"model": "bart", "along": 17, "stack": "encoder"} | OF_PAIR,
        "through the decoder only",
    ),
]


@pytest.mark.parametrize(("function", "changes", "sentence"), REFUSED)
def test_invalid_attributions_are_refused(function, changes, sentence):
    options = PLACE | changes
    kind = options.pop("model", None)
    model = family_model(kind) if kind else random_model()
    with pytest.raises((InputError, UnsupportedModel), match=sentence):
        getattr(probe, function)(model, TEXT, **options)


def test_parts_that_miss_the_score_are_an_error(monkeypatch):
    model = random_model()

    def without_an_mlp(*arguments):
        whole = probe.trace(*arguments)
        return dataclasses.replace(whole, mlp_out=whole.mlp_out * 0)

    monkeypatch.setattr(attribution, "trace", without_an_mlp)
    with pytest.raises(CrossCheckError, match="Cannot sum scores of"):
        probe.qk_attribution(model, TEXT, **PLACE)
    with pytest.raises(CrossCheckError, match="Cannot sum the write of a head of"):
        probe.ov_attribution(model, TEXT, **PLACE, along=torch.ones(28))
