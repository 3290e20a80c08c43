"""Computation in bfloat16: the certificate holds with a tolerance for its roundings and still
detects a wrong formula; swaps have the effects that they have in float64.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families import REPRESENTATIVES, SINGLE, each_family, family_model, make_family
from test_check import FAULTS, first_failure

import probe
from probe.model import check
from probe.model.check import EACH_ROUNDED, FROM_SCORES, ROUNDING, STEPS, THROUGH_ALL, certify
from probe.model.load import load, read_weights
from probe.model.tokens import tokenize
from probe.model.trace import target_states
from probe.patching.heads import swap_heads
from probe.studies import decompose as logits

BF16 = torch.bfloat16
TEXT = "The mole dug a tunnel under the muddy bank"
# Families whose numbers differ so much that eight roundings do not hide it.
NAMED_ALSO_HERE = (
    "scores not scaled",
    "a mask one off",
    "softmax over queries",
    "the write of another head",
    "buckets towards the query",
    "T5's activation",
    "no rotation",
    "pairs side by side",
    "Llama's activation",
    "interleaved groups",
    "scores cut off",
)


def test_bfloat16_has_the_precision_that_the_tolerance_is_made_of() -> None:
    """Half the relative distance of neighbouring numbers, which is the largest rounding error."""
    assert torch.finfo(BF16).eps / 2 == ROUNDING == 2**-8


@pytest.mark.parametrize("kind", each_family())
def test_the_certificate_holds_in_bfloat16(kind: str) -> None:
    model = family_model(kind, BF16)
    assert {tensor.dtype for tensor in (*model.weights.values(), *model.bridge.parameters())} == {
        BF16
    }
    certificate = certify(model, [TEXT]).require()
    assert certificate.dtype == "bfloat16"
    usual = STEPS * ROUNDING
    through = check.rounded_through(model.config.n_layers + model.config.n_decoder_layers)
    for row in certificate.rows:
        if row.note == THROUGH_ALL:
            assert row.tolerance == through
        elif row.note == EACH_ROUNDED:
            assert row.tolerance in (2 * check.rounded_through(1), 2 * through)
        elif row.note == FROM_SCORES:
            assert row.quantity == "pattern" and row.tolerance >= usual
        else:
            assert row.tolerance == usual
    assert 0 < certificate.worst.error < 1 / 16


@pytest.mark.parametrize("name", NAMED_ALSO_HERE)
def test_a_wrong_formula_is_named_in_bfloat16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, inject, quantity = FAULTS[name]
    model = family_model(kind, BF16)
    inject(monkeypatch)
    assert first_failure(certify(model, [TEXT]))[1:] == (0, quantity)


def exact_and_coarse(kind: str, tmp_path: Path) -> tuple[probe.Model, probe.Model]:
    """The same bfloat16 weights, used in float64 and in bfloat16."""
    coarse = load(make_family(tmp_path / kind, kind), dtype=BF16)
    return load(coarse.bridge, dtype=torch.float64), coarse


@pytest.mark.parametrize("kind", [kind for kind in REPRESENTATIVES if kind in SINGLE])
def test_swaps_in_bfloat16_are_those_in_float64(kind: str, tmp_path: Path) -> None:
    """With the same weights, the difference is within the roundings of the blocks, relative to
    the largest effect.
    """
    effects = []
    for model in exact_and_coarse(kind, tmp_path):
        texts = [tokenize(model, f"The {cue} under the bank") for cue in ("mole", "town")]
        at = [tokens.positions_of("bank")[-1] for tokens in texts]
        states = target_states(model, texts, at)
        way = (states.resid[0, -1] - states.resid[1, -1]).double()
        direction = (way / way.square().sum())[None]
        rows = [
            probe.model.variants.TargetText(t.ids, pos) for t, pos in zip(texts, at, strict=True)
        ]
        effect = swap_heads(read_weights(model), rows, states.z.flip(0), direction)
        effects.append(effect.double())
    exact, coarse = effects
    assert exact.abs().max() > 0.05
    error = (exact - coarse).abs().max() / exact.abs().max()
    assert 1e-6 < error < check.rounded_through(2)


@pytest.mark.parametrize("kind", each_family())
def test_the_terms_of_a_logit_sum_to_it_within_the_roundings_of_all_blocks(kind: str) -> None:
    model = family_model(kind, BF16)
    target = {"target": "The apple bank soon"} if kind not in SINGLE else {}
    terms = probe.decompose(model, TEXT, at="bank", tokens=(17, 30), **target)
    read = probe.trace(model, TEXT, *target.values())
    tokens = read.target if target else read.tokens
    logits = read.logits[tokens.positions_of("bank")[-1]].double()
    error = abs(terms["logit"].sum() - float(logits[17] - logits[30])) / float(logits.abs().max())
    blocks = model.config.n_layers + model.config.n_decoder_layers
    assert 0 < error < check.rounded_through(blocks) / 4


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_a_batch_reads_what_a_single_text_does_in_bfloat16(kind: str) -> None:
    model = family_model(kind, BF16)
    texts = [tokenize(model, text) for text in (TEXT, f"Then {TEXT}")]
    at = [tokens.positions_of("bank")[-1] for tokens in texts]
    read = target_states(model, texts, at).resid[:, -1].double()
    for tokens, pos, row in zip(texts, at, read, strict=True):
        single = probe.trace(model, tokens.text).resid_post[-1, pos].double()
        blocks = check.rounded_through(model.config.n_layers)
        assert (row - single).abs().max() < blocks * single.abs().max()


def test_a_missing_term_of_a_logit_is_detected_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    model = family_model("gpt2", BF16)
    whole = logits.components_by_source
    monkeypatch.setattr(
        logits,
        "components_by_source",
        lambda *arguments, **options: [
            part for part in whole(*arguments, **options) if part.layer != 1
        ],
    )
    with pytest.raises(
        probe.CrossCheckError, match=r"of the largest logit, expected at most 5e-02. Run"
    ):
        probe.decompose(model, TEXT, at="bank", tokens=(17, 30))


def test_a_bridge_and_a_model_of_hugging_face_in_bfloat16_share_their_weights(
    tmp_path: Path,
) -> None:
    import transformers

    folder = make_family(tmp_path / "llama", "llama")
    source = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=BF16)
    model = load(source)
    assert model.dtype == BF16 and model.origin.stored == "bfloat16"
    assert model.weights["norm.weight"].data_ptr() == source.model.norm.weight.data_ptr()
    assert certify(model).require().ok
    assert load(model.bridge).dtype == BF16
    assert sum(t.nbytes for t in model.weights.values()) * 2 == sum(
        t.nbytes for t in load(folder).weights.values()
    )


@pytest.mark.campaign
def test_a_study_in_bfloat16_finds_what_one_in_float32_finds(tmp_path: Path) -> None:
    sentences = probe.lexicon.expand("bank").sentences
    frames = list(dict.fromkeys(sentence.frame for sentence in sentences))[:3]
    corpus = [sentence for sentence in sentences if sentence.frame in frames]
    in_float32, in_bfloat16 = (
        probe.study(
            load("tiny-senses", dtype=dtype), sentences=corpus, permutations=99, max_pairs=8
        )
        for dtype in ("float32", "bfloat16")
    )
    exact, coarse = (
        study.frames["heads"].set_index(["layer", "head"]) for study in (in_float32, in_bfloat16)
    )
    page = probe.write(in_bfloat16, tmp_path)
    assert (exact["net"] - coarse["net"]).abs().max() < 0.02
    assert (exact["verdict"] == "resolver").any()
    # A head without an effect may pass the test of separation in one dtype and fail in the other.
    moving = exact["net"].abs() >= 0.02
    assert moving.sum() >= 3 and exact["verdict"][moving].equals(coarse["verdict"][moving])
    assert '"dtype": "bfloat16"' in (Path(page).parent / "manifest.json").read_text()


def test_tables_are_made_from_bfloat16_tensors_too(run: Callable, tmp_path: Path) -> None:
    """A walk, a patch and edges convert tensors to tables."""
    model = load("tiny-senses", dtype=BF16)
    walked = probe.walk(model, "The old tree by the river bank", at="bank")
    assert walked.frames["heads"]["layer"].notna().all()
    pair = ("The river bank", "The mortgage bank")
    by_dtype = [
        probe.patch(source, pair[0], against=pair[1], at="bank")["swap"]
        for source in (model, load("tiny-senses"))
    ]
    assert (by_dtype[0] - by_dtype[1]).abs().max() < 0.02
    rows = [tokenize(model, text).ids for text in pair]
    weights = read_weights(model)
    direction = torch.ones(1, weights.shape[2])
    assert probe.edges(weights, rows[:1], rows[1:], direction, depth=4).rows()
    code, stdout, _ = run("check", "--dtype", "bfloat16")
    assert code == 0 and "bfloat16" in stdout
