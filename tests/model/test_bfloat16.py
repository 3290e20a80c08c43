"""Computation in bfloat16: the certificate holds with a tolerance for its roundings and still
detects a wrong formula; swaps have the effects that they have in float64."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from families import HYBRIDS, SINGLE, each_family, family_model, make_family
from inside import (
    EACH_ROUNDED,
    FROM_SCORES,
    ROUNDING,
    STEPS,
    THROUGH_ALL,
    TargetText,
    decompose,
    read_weights,
    swap_heads,
    target_states,
)
from inside import rounded_through as through
from test_check import FAULTS, first_failure

import probe

BF16 = torch.bfloat16
TEXT = "The mole dug a tunnel under the muddy bank"
PAIR = ("The river bank", "The mortgage bank")
# Families whose numbers differ so much that eight roundings do not hide it.
NAMED_ALSO_HERE = (
    "scores not scaled",
    "a mask one off",
    "softmax over queries",
    "the write of another head",
    "T5's activation",
    "interleaved groups",
    "scores cut off",
)


@pytest.mark.parametrize("kind", [*each_family(), *each_family(*HYBRIDS, also=("lfm2",))])
def test_the_certificate_holds_in_bfloat16(kind: str) -> None:
    model = family_model(kind, BF16)
    tensors = (*model.weights.values(), *model.bridge.parameters())
    assert {tensor.dtype for tensor in tensors} == {BF16}
    certificate = probe.certify(model, [TEXT]).require()
    assert certificate.dtype == "bfloat16" and 0 < certificate.worst.error < 1 / 16
    # Half the relative distance of neighbouring numbers is the largest rounding error.
    assert torch.finfo(BF16).eps / 2 == ROUNDING
    usual, blocks = STEPS * ROUNDING, model.config.n_layers + model.config.n_decoder_layers
    for row in certificate.rows:
        wider = {
            THROUGH_ALL: (through(blocks),),
            EACH_ROUNDED: (2 * through(1), 2 * through(blocks)),
            FROM_SCORES: (max(usual, row.tolerance),),
        }
        assert row.tolerance in wider.get(row.note, (usual,))


@pytest.mark.parametrize("name", NAMED_ALSO_HERE)
def test_a_wrong_formula_is_named_in_bfloat16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, inject, quantity = FAULTS[name]
    model = family_model(kind, BF16)
    inject(monkeypatch)
    assert first_failure(probe.certify(model, [TEXT]))[1:] == (0, quantity)


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "bert"])
def test_swaps_in_bfloat16_are_those_in_float64(kind: str, tmp_path: Path) -> None:
    """With the same weights, the difference is within the roundings of the blocks, relative to
    the largest effect."""
    coarse = probe.load(make_family(tmp_path / kind, kind), dtype=BF16)
    effects = []
    for model in (probe.load(coarse.bridge, dtype=torch.float64), coarse):
        texts = [probe.tokenize(model, f"The {cue} under the bank") for cue in ("mole", "town")]
        at = [tokens.positions_of("bank")[-1] for tokens in texts]
        states = target_states(model, texts, at)
        way = (states.resid[0, -1] - states.resid[1, -1]).double()
        rows = [TargetText(t.ids, pos) for t, pos in zip(texts, at, strict=True)]
        direction = (way / way.square().sum())[None]
        effects.append(swap_heads(model, rows, states.z.flip(0), direction).double())
    exact, rounded = effects
    error = (exact - rounded).abs().max() / exact.abs().max()
    assert exact.abs().max() > 0.05 and 1e-6 < error < through(2)


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_the_terms_of_a_logit_sum_to_it_within_the_roundings_of_all_blocks(kind: str) -> None:
    model = family_model(kind, BF16)
    target = {} if kind in SINGLE else {"target": "The apple bank soon"}
    terms = probe.decompose(model, TEXT, at="bank", tokens=(17, 30), **target)
    read = probe.trace(model, TEXT, *target.values())
    tokens = read.target if target else read.tokens
    logits = read.logits[tokens.positions_of("bank")[-1]].double()
    error = abs(terms["logit"].sum() - float(logits[17] - logits[30])) / float(logits.abs().max())
    assert 0 < error < through(model.config.n_layers + model.config.n_decoder_layers) / 4


def test_an_object_in_bfloat16_shares_its_weights(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "llama", "llama")
    source = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=BF16)
    model = probe.load(source)
    assert model.dtype == BF16 and model.origin.stored == "bfloat16"
    assert model.weights["norm.weight"].data_ptr() == source.model.norm.weight.data_ptr()
    assert probe.certify(model).require().ok and probe.load(model.bridge).dtype == BF16


@pytest.mark.campaign
def test_a_study_in_bfloat16_finds_what_one_in_float32_finds(tmp_path: Path) -> None:
    sentences = probe.lexicon.expand("bank").sentences
    frames = list(dict.fromkeys(sentence.frame for sentence in sentences))[:3]
    corpus = [sentence for sentence in sentences if sentence.frame in frames]
    in_float32, in_bfloat16 = (
        probe.study(
            probe.load("tiny-senses", dtype=dtype), sentences=corpus, permutations=99, max_pairs=8
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
    model = probe.load("tiny-senses", dtype=BF16)
    walked = probe.walk(model, "The old tree by the river bank", at="bank")
    assert walked.frames["heads"]["layer"].notna().all()
    coarse, exact = (
        probe.patch(source, PAIR[0], against=PAIR[1], at="bank")["swap"]
        for source in (model, "tiny-senses")
    )
    assert (coarse - exact).abs().max() < 0.02
    rows = [probe.tokenize(model, text).ids for text in PAIR]
    weights = read_weights(model)
    direction = torch.ones(1, weights.shape[2])
    assert probe.edges(weights, rows[:1], rows[1:], direction, depth=4).rows()
    code, stdout, _ = run("check", "--dtype", "bfloat16")
    assert code == 0 and "bfloat16" in stdout


def test_a_missing_term_of_a_logit_is_detected_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = decompose.components_by_source

    def without_a_layer(*arguments, **options):
        return [part for part in whole(*arguments, **options) if part.layer != 1]

    monkeypatch.setattr(decompose, "components_by_source", without_a_layer)
    message = r"of the largest logit, expected at most 5e-02. Run"
    with pytest.raises(probe.CrossCheckError, match=message):
        probe.decompose(family_model("gpt2", BF16), TEXT, at="bank", tokens=(17, 30))
