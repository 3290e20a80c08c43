"""The forward from raw weights of every family compared with Hugging Face's, and the weights
that it reads.
"""

from pathlib import Path

import plain_forward
import pytest
import torch
from families import (
    EXACT,
    HEADS,
    LAYERS,
    PAIRED,
    REPRESENTATIVES,
    ROUNDED,
    SINGLE,
    assert_near,
    each_family,
    family_model,
    make_family,
    model_class,
    near,
)
from handmade import ODD, random_model
from transformers import AutoTokenizer

from probe.model import blocks, forward, variants
from probe.model.architectures import FAMILIES
from probe.model.check import certify
from probe.model.load import read_weights, untrained
from probe.model.model import Model
from probe.model.tokens import tokenize
from probe.model.trace import target_states, trace
from probe.model.weights import read_stacks

TEXT, TARGET = "The mole dug a tunnel under the muddy bank", "A red apple fell"
STEPS = (
    "resid_pre",
    "x",
    "q",
    "k",
    "v",
    "scores",
    "pattern",
    "z",
    "delta_e",
    "attn_out",
    "resid_mid",
    "mlp_out",
)


def ids_of(model: Model, text: str = TEXT) -> torch.Tensor:
    return torch.tensor(tokenize(model, text).ids)


def steps_of(
    model: Model, ids: torch.Tensor, dtype: torch.dtype = torch.float64
) -> list[dict[str, torch.Tensor]]:
    return list(plain_forward.run(read_weights(model), ids, dtype))


# --- against Hugging Face -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", REPRESENTATIVES)
def test_the_forward_and_the_trace_are_what_hugging_face_computes(
    kind: str, tmp_path: Path
) -> None:
    model, folder = (
        family_model(kind, torch.float64),
        make_family(tmp_path / kind, kind),
    )  # the same numbers
    how = {"dtype": torch.float64, "attn_implementation": "eager"}
    if FAMILIES[kind].routed:
        how["experts_implementation"] = "eager"
    plain = model_class(kind).from_pretrained(folder, **how)
    options = {"output_attentions": True, "output_hidden_states": True}
    close = ROUNDED if FAMILIES[kind].adapter_rounds_differently else near(kind)
    if kind in PAIRED:
        pair = trace(model, TEXT, TARGET)
        ids, target_ids = pair.source.ids, pair.target.ids
        with torch.no_grad():
            theirs = plain.eval()(
                torch.tensor([ids]), decoder_input_ids=torch.tensor([target_ids]), **options
            )
        stacks = read_stacks(model.weights, model.config)
        memory = variants.encode(stacks, ids)
        assert_near(memory, theirs.encoder_last_hidden_state, close)
        decoded = variants.decode(stacks, target_ids, memory)
        assert_near(decoded.logits, theirs.logits[:, -1], close)
        whole = [
            (pair.encoder.pattern, theirs.encoder_attentions),
            (pair.decoder.pattern, theirs.decoder_attentions),
            (pair.cross.pattern, theirs.cross_attentions),
            (pair.encoder.resid_pre, theirs.encoder_hidden_states[:LAYERS]),
            (pair.decoder.resid_pre, theirs.decoder_hidden_states[:LAYERS]),
        ]
        all_logits = [pair.logits]
    else:
        record = trace(model, TEXT)
        bos = model.tokenizer.bos_token if model.config.prepend_bos else ""
        assert record.tokens.ids == tuple(
            AutoTokenizer.from_pretrained(folder)(bos + TEXT)["input_ids"]
        )
        with torch.no_grad():
            theirs = plain.eval()(torch.tensor([record.tokens.ids]), **options)
        ours = steps_of(model, torch.tensor(record.tokens.ids))
        patterns, streams = (
            torch.stack([step[name] for step in ours]) for name in ("pattern", "resid_pre")
        )
        whole = [(patterns, theirs.attentions), (streams, theirs.hidden_states[:LAYERS])]
        whole += [
            (record.pattern, theirs.attentions),
            (record.resid_pre, theirs.hidden_states[:LAYERS]),
        ]
        all_logits = [record.logits, forward.unembed(read_weights(model), ours[-1]["resid_post"])]
    for logits in all_logits:
        assert_near(logits, theirs.logits[0], close)
    for tensors, layers in whole:
        assert_near(tensors, torch.stack([layer[0] for layer in layers]), close)


# --- weights --------------------------------------------------------------------------------------


def test_sizes_are_read_as_they_are_and_the_untied_unembedding_is_another_matrix() -> None:
    tied, untied = (read_weights(random_model(torch.float64, tied=tied)) for tied in (True, False))
    table, unembedding = (forward.unembedding(weights, torch.float64) for weights in (tied, untied))
    assert table is tied.raw["wte.weight"]
    assert tied.shape == (
        ODD["n_layer"],
        ODD["n_head"],
        ODD["n_embd"],
        ODD["n_embd"] // ODD["n_head"],
    )
    assert tied.blocks[0].d_mlp == ODD["n_inner"]
    assert not torch.equal(unembedding, untied.raw["wte.weight"])


@pytest.mark.parametrize("kind", each_family(also=("gpt_neox", "mixtral")))
def test_weights_are_views_of_the_models_own(kind: str) -> None:
    model = family_model(kind, torch.float64)
    raw = {tensor.untyped_storage().data_ptr() for tensor in model.weights.values()}
    for stack in read_stacks(model.weights, model.config).values():
        scaled = ("w_o", "w_out") if kind == "granite" else ()  # what is written, in copies
        tensors = [
            part
            for block in stack.blocks
            for name, part in vars(block).items()
            if isinstance(part, torch.Tensor) and name not in scaled
        ]
        assert {tensor.untyped_storage().data_ptr() for tensor in tensors} <= raw
        assert stack.shape == (LAYERS, HEADS, model.config.d_model, model.config.d_head)


@pytest.mark.parametrize("kind", each_family(also=("gpt_neox", "mixtral")))
def test_an_untrained_twin_has_other_weights_of_the_same_shape(kind: str) -> None:
    model = family_model(kind, torch.float64)
    twin = untrained(model, seed=3)
    shapes = [
        {name: tensor.shape for name, tensor in variant.weights.items()}
        for variant in (model, twin)
    ]
    assert shapes[0] == shapes[1]
    assert any(
        not torch.equal(twin.weights[name], tensor) for name, tensor in model.weights.items()
    )
    assert certify(twin).require().ok
    if kind in PAIRED:
        return
    tokens = tokenize(twin, TEXT)
    states = target_states(twin, [tokens], [4])
    *_, last = steps_of(twin, torch.tensor(tokens.ids))
    torch.testing.assert_close(states.z[0, -1], last["z"][:, 4], rtol=0, atol=1e-5)


# --- against itself -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_merged_heads_are_the_sum_of_their_writes_and_the_bias(kind: str) -> None:
    model = family_model(kind, torch.float64)
    for step, block in zip(steps_of(model, ids_of(model)), read_weights(model).blocks, strict=True):
        bias = 0 if block.b_o is None else block.b_o
        torch.testing.assert_close(
            blocks.merge_heads(block, step["z"].transpose(0, 1)),
            step["delta_e"].sum(0) + bias,
            **EXACT,
        )


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_a_batch_is_its_rows(kind: str) -> None:
    model = family_model(kind, torch.float64)
    ids = torch.randint(model.config.d_vocab, (5, 9), generator=torch.Generator().manual_seed(1))
    together = steps_of(model, ids)
    for row in range(len(ids)):
        for batched, single in zip(together, steps_of(model, ids[row]), strict=True):
            for name in STEPS:
                in_batch, by_itself = (
                    part.masked_fill(part.isinf(), 0) for part in (batched[name][row], single[name])
                )
                assert_near(in_batch, by_itself, near(kind))


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_half_the_precision_is_half_the_digits(kind: str) -> None:
    model = family_model(kind, torch.float64)
    ids = ids_of(model)
    for exact, rough in zip(steps_of(model, ids), steps_of(model, ids, torch.float32), strict=True):
        assert rough["resid_post"].dtype == torch.float32
        error = (exact["resid_post"] - rough["resid_post"]).abs().max() / exact[
            "resid_post"
        ].abs().max()
        assert 0 < error < 1e-5
