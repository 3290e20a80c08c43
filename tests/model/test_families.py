"""Every family beside GPT-2: the certificate holds, every fault and every lying hook is named, and a trace is Hugging Face's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from families import HEADS, LAYERS, MADE, PAIRED, family_model, make_family
from torch import Tensor

from probe.errors import CrossCheckError, InputError, ModelError
from probe.model import attention as formulas
from probe.model import ends, forward, trust
from probe.model.architectures import FAMILIES, Attention
from probe.model.check import DEFAULT_TEXTS, Certificate, certify
from probe.model.load import load
from probe.model.model import Model
from probe.model.records import Trace
from probe.model.tokens import tokenize
from probe.model.trace import trace

DOUBLE = {"rtol": 0, "atol": 1e-12}
TEXT, TARGET = "The mole dug a tunnel under the muddy bank", "A red apple fell"
STEPS = ["resid_pre", "x", "q", "k", "v", "scores", "pattern", "z", "delta_e", "attn_out", "resid_mid"]
REPAIRED = {
    "bert": {("", "scores"), ("", "attn_out"), ("", "resid_mid")},
    "roberta": {("", "scores"), ("", "attn_out"), ("", "resid_mid")},
    "t5": {("decoder", "scores")},
    "bart": {(s, "scores") for s in ("encoder", "decoder", "cross")}
    | {(s, "resid_mid") for s in ("encoder", "decoder")},
    "gpt_neox": {("", "resid_mid")},
    "llama": set(),
    "qwen2": set(),
}
REPAIRED["marian"] = REPAIRED["bart"]


def traced(kind: str, text: str = TEXT) -> dict[str, Trace]:
    """Every attention of a float64 model on the text, by its name in the table."""
    model = family_model(kind, torch.float64)
    if kind not in PAIRED:
        return {"": trace(model, text)}
    pair = trace(model, text, TARGET)
    return {"encoder": pair.encoder, "decoder": pair.decoder, "cross": pair.cross}


def first_failure(certificate: Certificate) -> tuple[str, int | None, str]:
    with pytest.raises(CrossCheckError):
        certificate.require()
    row = next(row for row in certificate.rows if not row.ok)
    return row.stack, row.layer, row.quantity


# The certificate


def test_every_family_of_the_table_is_made_here() -> None:
    assert set(MADE) == set(FAMILIES) - {"gpt2"} == set(REPAIRED)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", MADE)
def test_a_sound_model_passes(kind: str, dtype: torch.dtype, seed: int) -> None:
    certificate = certify(family_model(kind, dtype, seed=seed)).require()
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    wider = {row.quantity for row in certificate.rows if row.tolerance != tolerance}
    rounds = kind in ("llama", "qwen2") and dtype == torch.float64  # their own code softmaxes in float32
    assert wider == ({"pattern"} if rounds else set())
    for row in certificate.rows:
        assert row.error <= (1e-6 if row.quantity in wider else tolerance)
        assert row.scale > 0.05
        assert (row.note == "the model's own softmax is in float32") == (row.quantity in wider)
    assert certificate.worst.error > 0  # the two sides are two computations


@pytest.mark.parametrize("kind", MADE)
def test_there_is_a_row_for_every_layer_and_quantity_in_the_order_of_the_computation(kind: str) -> None:
    rows = [(row.stack, row.layer, row.quantity) for row in certify(family_model(kind)).rows]
    mlp = ["mlp_out", "resid_post"]
    if kind in PAIRED:
        across = [STEPS[0], "memory", *STEPS[1:]]
        expected = [(s, layer, q) for s in ("encoder", "decoder") for layer in range(LAYERS) for q in STEPS + mlp]
        expected += [("cross", layer, quantity) for layer in range(LAYERS) for quantity in across]
    else:
        expected = [("", layer, quantity) for layer in range(LAYERS) for quantity in STEPS + mlp]
    assert rows == [*expected, ("", None, "logits")]


@pytest.mark.parametrize("kind", MADE)
def test_attention_is_far_from_uniform(kind: str) -> None:
    """Otherwise a wrong query or key would hardly show."""
    for seen in traced(kind).values():
        rows = seen.pattern[..., 1:, :]
        entropy = -(rows * rows.clamp_min(1e-300).log()).sum(-1)
        uniform = (rows > 0).sum(-1).double().log()
        assert (entropy / uniform).mean() < 0.92


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", MADE)
def test_a_text_as_long_as_the_context_passes_too(kind: str, dtype: torch.dtype) -> None:
    """Far positions: the last rows of tables, large angles, the widest buckets."""
    model = family_model(kind, dtype)
    text = "The" + " bank" * (36 if kind != "t5" else 80)
    assert len(tokenize(model, text)) > min(model.config.n_ctx, 80) - 4
    assert certify(model, [text]).require().ok


# Faults in the raw weights


def nudged(model: Model, name: str) -> Model:
    """The model whose raw tensor is off by a few % of its largest number in every row, while the hooked model keeps the true one.

    Not by the same in all rows: what is added to all of T5's buckets alike is nothing to a softmax.
    """
    changed = model.weights[name].clone()
    size = 0.01 * changed.abs().max()
    changed[..., 0] += size * (1 + torch.arange(len(changed)) % 3) if changed.dim() == 2 else size
    return replace(model, weights={**model.weights, name: changed})


def expected_row(attention: Attention, layer: int, role: str, *, bias: bool, norm_first: bool) -> tuple[str, int, str]:
    """The first row that a wrong weight of this role must show in."""
    after = {"norm": "resid_mid", "norm_mlp": "resid_post"}
    before = {"norm": "x", "norm_mlp": "mlp_out"}
    normed = before if norm_first else after
    other = {"qkv": "q", "o": "attn_out" if bias else "delta_e"} | {"in": "mlp_out", "out": "mlp_out"}
    other |= {"gate": "mlp_out", "up": "mlp_out", "q": "q", "k": "k", "v": "v"}
    return attention.name, layer, (normed | other)[role]


@pytest.mark.parametrize("kind", MADE)
def test_a_wrong_number_in_any_raw_tensor_of_a_layer_is_named(kind: str) -> None:
    model, family = family_model(kind, torch.float64), FAMILIES[kind]
    inside = set()
    for attention in family.attentions:
        for number, (role, (name, _)) in enumerate(attention.parts.items()):
            for layer in range(LAYERS):
                inside |= {f"{attention.layers.format(layer)}{name}.{ending}" for ending in ("weight", "bias")}
            layer = number % LAYERS
            for ending in ("weight", "bias"):
                full = f"{attention.layers.format(layer)}{name}.{ending}"
                if full in model.weights:
                    wanted = expected_row(attention, layer, role, bias=ending == "bias", norm_first=family.norm_first)
                    assert first_failure(certify(nudged(model, full), [TEXT])) == wanted, full
    outside = set(model.weights) - inside
    for name in outside:
        _, _, quantity = first_failure(certify(nudged(model, name), [TEXT]))
        assert quantity in ("resid_pre", "logits", "scores", "pattern", "memory"), name
    assert len(outside) <= len(family.outside) * 2 + len(family.head) * 2 + 2


@pytest.mark.parametrize("kind", MADE)
def test_heads_cut_apart_the_wrong_way_are_named(kind: str) -> None:
    model = family_model(kind, torch.float64)
    attention = FAMILIES[kind].attentions[-1]
    name = f"{attention.layers.format(1)}{attention.parts['o'][0]}.weight"
    weight = model.weights[name]
    rolled = weight.unflatten(1, (HEADS, -1)).roll(1, dims=1).flatten(1)
    wrong = replace(model, weights={**model.weights, name: rolled})
    certificate = certify(wrong, [TEXT])
    assert first_failure(certificate) == (attention.name, 1, "delta_e")
    with pytest.raises(CrossCheckError, match=f"delta_e of {attention.name} layer 1 is".replace("  ", " ")):
        certificate.require()


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_keys_given_to_the_wrong_group_of_heads_are_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interleaved(k: Tensor, heads: int) -> Tensor:
        return k.repeat(*(1,) * (k.dim() - 3), heads // k.shape[-3], 1, 1)

    model = family_model(kind, torch.float64)
    monkeypatch.setattr(forward, "share_heads", interleaved)  # on both sides: the scores and the output still tell
    assert first_failure(certify(model, [TEXT]))[2] == "scores"


def no_turn(x: Tensor, angles: Tensor) -> Tensor:
    return x


def other_way(x: Tensor, angles: Tensor) -> Tensor:
    return formulas_rotate(x, -angles)


def pairs_side_by_side(x: Tensor, angles: Tensor) -> Tensor:
    turned, left = x[..., : angles.shape[-1]], x[..., angles.shape[-1] :]
    swapped = torch.stack([-turned[..., 1::2], turned[..., 0::2]], dim=-1).flatten(-2)
    return torch.cat([turned * angles.cos() + swapped * angles.sin(), left], dim=-1)


def towards_the_query(table: Tensor, offsets: Tensor, *, furthest: int, both_ways: bool) -> Tensor:
    return formulas_relative_bias(table, -offsets, furthest=furthest, both_ways=both_ways)


formulas_rotate, formulas_relative_bias = formulas.rotate, formulas.relative_bias
WRONG: list[tuple[str, str, Callable[..., Tensor], str]] = [
    ("bert", "gelu", formulas.gelu_new, "mlp_out"),
    ("bert", "scores", formulas.matches, "pattern"),  # the repaired scores are as wrong: the pattern tells
    ("t5", "matches", formulas.scores, "scores"),
    ("t5", "relative_bias", towards_the_query, "scores"),
    ("t5", "relu", formulas.silu, "mlp_out"),
    ("gpt_neox", "rotate", no_turn, "scores"),
    ("llama", "rotate", other_way, "scores"),
    ("llama", "rotate", pairs_side_by_side, "scores"),
    ("llama", "silu", formulas.gelu, "mlp_out"),
    ("llama", "inverse_rms", lambda x, epsilon: 1 / (x.std(-1, keepdim=True) + epsilon), "x"),
    ("qwen2", "mask", lambda scores: scores, "scores"),
    ("bart", "layer_norm", lambda x, gain, bias, epsilon: x * gain + bias, "resid_pre"),
]


@pytest.mark.parametrize(("kind", "formula", "wrong", "quantity"), WRONG)
def test_a_wrong_formula_is_named(
    kind: str, formula: str, wrong: Callable[..., Tensor], quantity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = family_model(kind, torch.float64)
    monkeypatch.setattr(formulas, formula, wrong)
    stack, layer, named = first_failure(certify(model, [TEXT]))
    assert (stack, layer, named) == (FAMILIES[kind].attentions[0].name, 0, quantity)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("roberta", {"first": 1}),
        ("bart", {"first": 0}),
        ("t5", {"furthest": 40}),
        ("gpt_neox", {"dims": 4}),
        ("llama", {"base": 500.0}),
    ],
)
def test_wrong_positions_are_named(kind: str, changes: dict[str, int]) -> None:
    model = family_model(kind, torch.float64)
    wrong = replace(model, config=replace(model.config, positions=replace(model.config.positions, **changes)))
    assert first_failure(certify(wrong, [TEXT]))[2] == ("resid_pre" if kind in ("roberta", "bart") else "scores")


def test_wrong_sinusoids_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    true = ends.sinusoids
    monkeypatch.setattr(ends, "sinusoids", lambda n, d: true(n, d).roll(1, dims=0))
    assert first_failure(certify(family_model("marian", torch.float64), [TEXT])) == ("encoder", 0, "resid_pre")


# Hooks that lie


LIES = [
    (kind, number, quantity)
    for kind, family in FAMILIES.items()
    for number, attention in enumerate(family.attentions)
    for quantity, repair in attention.lies.items()
    if repair.raw
]


@pytest.mark.parametrize("kind", MADE)
def test_a_repaired_row_says_so(kind: str) -> None:
    rows = certify(family_model(kind)).rows
    said = {(row.stack, row.quantity) for row in rows if row.note.startswith("repaired: ")}
    assert said == REPAIRED[kind]
    for row in rows:
        if row.quantity == "scores" and row.note:
            assert row.note == "repaired: scores recomputed from q.k"


@pytest.mark.parametrize(("kind", "number", "quantity"), LIES)
def test_the_raw_hook_fails_the_row_that_its_repair_passes(
    kind: str, number: int, quantity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, family = family_model(kind), FAMILIES[kind]
    attention = family.attentions[number]
    believed = replace(
        attention,
        hooks={**attention.hooks, quantity: attention.lies[quantity].raw},
        lies={name: repair for name, repair in attention.lies.items() if name != quantity},
    )
    attentions = (*family.attentions[:number], believed, *family.attentions[number + 1 :])
    monkeypatch.setitem(FAMILIES, kind, replace(family, attentions=attentions))
    failed = {(row.stack, row.layer, row.quantity) for row in certify(model, [TEXT]).rows if not row.ok}
    assert {(attention.name, layer, quantity) for layer in range(LAYERS)} <= failed
    # a wrong resid_mid is what the MLP and cross-attention start from, too
    assert {row[2] for row in failed} <= {quantity, "mlp_out", "resid_post", "resid_pre"}


@pytest.mark.parametrize("kind", MADE)
def test_a_hook_that_edits_is_named_where_it_edits(kind: str) -> None:
    model = family_model(kind, torch.float64)
    for attention in FAMILIES[kind].attentions:
        for quantity in ("q", "v", "z"):
            where = f"{attention.blocks}.1.{attention.hooks[quantity]}"
            point = model.bridge.hook_dict[where]
            point.add_hook(lambda tensor, hook: tensor * (1 + 1e-6), is_permanent=True)
            try:
                certificate = certify(model, [TEXT])
            finally:
                point.remove_hooks(including_permanent=True)
            assert first_failure(certificate) == (attention.name, 1, quantity)
    assert certify(model, [TEXT]).ok


# What a trace holds


@pytest.mark.parametrize("kind", MADE)
def test_a_trace_is_what_hugging_face_computes(kind: str, tmp_path: Path) -> None:
    folder = make_family(tmp_path / kind, kind)
    model = load(folder, dtype=torch.float64)
    plain = getattr(transformers, MADE[kind][1]).from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float64
    )
    single = kind in ("llama", "qwen2", "gpt_neox")  # Hugging Face softmaxes in float32 there
    near = {"rtol": 0, "atol": 1e-6 if single else 1e-10}
    options = {"output_attentions": True, "output_hidden_states": True}
    if kind in PAIRED:
        pair = trace(model, TEXT, TARGET)
        with torch.no_grad():
            ids, given = torch.tensor([pair.source.ids]), torch.tensor([pair.target.ids])
            theirs = plain.eval()(ids, decoder_input_ids=given, **options)
        whole = [
            (pair.encoder.pattern, theirs.encoder_attentions),
            (pair.decoder.pattern, theirs.decoder_attentions),
            (pair.cross.pattern, theirs.cross_attentions),
            (pair.encoder.resid_pre, theirs.encoder_hidden_states[:LAYERS]),
            (pair.decoder.resid_pre, theirs.decoder_hidden_states[:LAYERS]),
        ]
        logits = pair.logits
    else:
        seen = trace(model, TEXT)
        with torch.no_grad():
            theirs = plain.eval()(torch.tensor([seen.tokens.ids]), **options)
        whole = [(seen.pattern, theirs.attentions), (seen.resid_pre, theirs.hidden_states[:LAYERS])]
        logits = seen.logits
    torch.testing.assert_close(logits, theirs.logits[0], **near)
    for ours, layers in whole:
        torch.testing.assert_close(ours, torch.stack([layer[0] for layer in layers]), **near)


@pytest.mark.parametrize("kind", MADE)
def test_parts_sum_to_the_whole(kind: str) -> None:
    rounded = {"rtol": 0, "atol": 1e-6 if kind in ("llama", "qwen2") else 1e-12}
    for name, seen in traced(kind).items():
        rows = seen.pattern.sum(-1)
        torch.testing.assert_close(rows, torch.ones_like(rows), **rounded)
        for layer, block in enumerate(seen.stack.blocks):
            for at in (0, 2, len(seen.tokens) - 1):
                writes = [seen.delta_e(layer, head, at) for head in range(HEADS)]
                whole = sum(writes) if block.b_o is None else sum(writes) + block.b_o
                torch.testing.assert_close(whole, seen.attn_out[layer, at], **DOUBLE)
                for head, write in enumerate(writes):
                    by_source = seen.delta_e_by_source(layer, head, at)
                    torch.testing.assert_close(by_source.sum(0), write, **DOUBLE)
                    assert len(by_source) == seen.pattern.shape[-1], name


@pytest.mark.parametrize("kind", ["gpt_neox", "llama", "qwen2"])
def test_in_a_decoder_a_later_token_changes_nothing_before_it(kind: str) -> None:
    short, long = traced(kind)[""], traced(kind, TEXT + " after the flood")[""]
    n = len(short.tokens)
    assert long.tokens.ids[:n] == short.tokens.ids and len(long.tokens) > n
    for name in ("resid_post", "z", "q", "k", "v"):
        torch.testing.assert_close(getattr(long, name)[..., :n, :], getattr(short, name), rtol=0, atol=1e-6)
    assert (long.pattern[..., :n, n:] == 0).all()
    assert (long.scores[..., :n, n:] == -torch.inf).all() or (long.scores[..., :n, n:] < -1e30).all()


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_in_an_encoder_every_cell_is_filled_and_a_later_word_reaches_an_earlier_one(kind: str) -> None:
    model = family_model(kind, torch.float64)
    first, second = (trace(model, f"The bank raised the {word}") for word in ("interest", "tree"))
    assert (first.pattern > 0).all()
    at = first.tokens.pieces.index(" bank")
    assert torch.equal(first.resid_pre[0, at], second.resid_pre[0, at])
    assert (first.resid_post[0, at] - second.resid_post[0, at]).abs().max() > 1e-3


def test_grouped_query_heads_share_keys_and_values_and_ask_each_for_itself() -> None:
    seen = traced("llama")[""]
    assert torch.equal(seen.k[:, 0], seen.k[:, 1]) and torch.equal(seen.v[:, 2], seen.v[:, 3])
    assert not torch.equal(seen.k[:, 1], seen.k[:, 2])
    assert not torch.equal(seen.q[:, 0], seen.q[:, 1])
    assert seen.stack.shape == (LAYERS, HEADS, 32, 6)


@pytest.mark.parametrize("kind", PAIRED)
def test_cross_attention_is_rectangular_and_nothing_is_masked(kind: str) -> None:
    pair = trace(family_model(kind, torch.float64), TEXT, TARGET)
    n, m = len(pair.target), len(pair.source)
    assert n != m
    assert pair.cross.pattern.shape == pair.cross.scores.shape == (LAYERS, HEADS, n, m)
    assert (pair.cross.pattern > 0).all() and pair.cross.scores.isfinite().all()
    assert (pair.decoder.pattern.triu(1) == 0).all()
    assert (pair.encoder.pattern > 0).all()
    torch.testing.assert_close(pair.cross.resid_pre, pair.decoder.resid_mid, **DOUBLE)
    assert torch.equal(pair.cross.memory[0], pair.cross.memory[1])
    assert repr(pair) == f"<PairTrace of {m} source and {n} target tokens through {kind}>"
    assert repr(pair.cross) == f"<CrossTrace of {n} x {m} tokens through {kind}: {LAYERS} layers x {HEADS} heads>"


@pytest.mark.parametrize("kind", PAIRED)
def test_a_later_target_token_changes_nothing_before_it_and_a_source_token_does(kind: str) -> None:
    model = family_model(kind, torch.float64)
    short, long = (trace(model, TEXT, target) for target in (TARGET, TARGET + " into the garden"))
    n = len(short.target)
    assert long.target.ids[:n] == short.target.ids and len(long.target) > n
    torch.testing.assert_close(long.cross.pattern[..., :n, :], short.cross.pattern, **DOUBLE)
    torch.testing.assert_close(long.logits[:n], short.logits, **DOUBLE)
    other = trace(model, TEXT + " again", TARGET)
    assert (other.logits - short.logits).abs().max() > 1e-3


def test_the_decoder_reads_the_start_token_and_the_target_without_its_end() -> None:
    model = family_model("bart")
    pair = trace(model, TEXT, TARGET)
    assert pair.target.ids[0] == model.config.start_token
    assert pair.target.pieces == ("</s>", "<s>", "A", " red", " apple", " fell")
    assert pair.source.pieces[0] == "<s>" and pair.source.pieces[-1] == "</s>"
    assert pair.target.spans[3:] == ((2, 5), (6, 11), (12, 16))


@pytest.mark.parametrize("field", ["q", "k", "v", "z", "scores", "pattern", "x", "memory", "resid_mid"])
def test_a_cross_trace_of_a_wrong_shape_cannot_be_made(field: str) -> None:
    cross = traced("bart")["cross"]
    with pytest.raises(ValueError, match=f"{field} has shape"):
        replace(cross, **{field: getattr(cross, field)[..., :-1]})


def test_a_place_that_is_not_there_is_refused_in_one_sentence() -> None:
    cross = traced("t5")["cross"]
    for take in (cross.delta_e, cross.delta_e_by_source):
        with pytest.raises(InputError) as error:
            take(layer=0, head=HEADS, at=0)
        assert str(error.value) == (
            f"Taking ΔE out of a cross-attention trace: head is {HEADS}, expected 0 to {HEADS - 1}; choose one of these."
        )


def test_a_target_is_asked_for_and_refused_where_it_belongs() -> None:
    with pytest.raises(InputError) as missing:
        trace(family_model("t5"), TEXT)
    assert str(missing.value) == (
        "Tracing a text through t5: it is an encoder-decoder; give trace(model, source, target)."
    )
    with pytest.raises(InputError) as too_much:
        family_model("bert").trace(TEXT, TARGET)
    assert str(too_much.value) == ("Tracing a text through bert: it has no decoder for a target; give one text only.")
    with pytest.raises(InputError, match="expected at most 40"):
        trace(family_model("bart"), TEXT, "bank " * 50)


@pytest.mark.parametrize("kind", MADE)
def test_no_hook_is_left_behind(kind: str) -> None:
    model = family_model(kind)
    before = [(name, len(point.fwd_hooks)) for name, point in model.bridge.hook_dict.items()]
    certify(model, DEFAULT_TEXTS[:1])
    assert [(name, len(point.fwd_hooks)) for name, point in model.bridge.hook_dict.items()] == before


# The self-check of loading can fail, each part of it, in each stack


def self_check(model: Model, where: str, edit: Callable[[Tensor], Tensor]) -> str:
    ids = model.tokenizer("The mole dug under the bank.", add_special_tokens=False)["input_ids"]
    with (
        model.bridge.hooks(fwd_hooks=[(where, lambda tensor, hook: edit(tensor))]),
        pytest.raises(ModelError) as caught,
    ):
        trust.check_family(model, ids)
    return str(caught.value)


@pytest.mark.parametrize(("kind", "stack"), [("bert", 0), ("t5", 0), ("t5", 1), ("t5", 2), ("llama", 0)])
def test_the_self_check_sees_each_property_broken(kind: str, stack: int) -> None:
    model, attention = family_model(kind), FAMILIES[kind].attentions[stack]
    pattern = f"{attention.blocks}.1.{attention.hooks['pattern']}"
    said = self_check(model, pattern, lambda rows: rows * 0.99)
    family = FAMILIES[kind].name
    assert said == (
        f"Cannot load {kind}: its hooks fail the self-check: the rows of its attention pattern do not sum to 1; load an "
        f"unmodified {family}."
    )
    if attention.causal:
        flat = self_check(model, pattern, lambda rows: torch.full_like(rows, 1 / rows.shape[-1]))
        assert "a position looks ahead at a later token" in flat
    written = f"{attention.blocks}.1.{attention.hooks['attn_out']}"
    assert "an edit of a head's z does not change its logits" in self_check(model, written, torch.zeros_like)
