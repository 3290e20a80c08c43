"""The contract of every family: one test for each row of the table.

Most rows need no other test, because the code that uses them is tested with the representatives
(`families.REPRESENTATIVES`). A rule of only some families is tested with the rule.
"""

from pathlib import Path

import pytest
import torch
from families import (
    EACH_HYBRID,
    EXACT,
    PAIRED,
    ROUNDED,
    VOCABULARY,
    assert_near,
    family_model,
    head_sizes,
    make_family,
    model_class,
    near,
    random_model,
)
from hooked_runs import bound, every_direction, random_rows, random_z, run_with_swaps

from probe.model import blocks, forward, variants
from probe.model.architectures import FAMILIES
from probe.model.check import DEFAULT_TEXTS, RECURRENT, certify
from probe.model.decomposition import closing_error
from probe.model.load import load, read_weights
from probe.model.model import Model
from probe.model.parameters import count_tensors
from probe.model.records import Trace
from probe.model.trace import trace
from probe.model.weights import read_stacks
from probe.patching.heads import swap_heads

TEXT = "The mole dug a tunnel under the muddy bank"
TARGET = "A muddy apple"


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_keeps_its_contract(kind: str, tmp_path: Path) -> None:
    folder = make_family(tmp_path / kind, kind)
    model = load(folder, dtype=torch.float64)
    require_loaded(model)
    require_certified(model)
    require_logits_of_hugging_face(model, folder)
    records = [*traces(model)]
    for record in records:
        require_heads_that_sum(record)
    if kind not in PAIRED:
        assert closing_error(records[0], model.config.n_layers, at=4) <= bound(model)
        require_swap_of_a_head(model)


@pytest.mark.parametrize("kind", EACH_HYBRID)
def test_a_hybrid_is_certified_in_float32_too(kind: str) -> None:
    """The others are in `test_check.py`."""
    require_certified(family_model(kind))


def require_loaded(model: Model) -> None:
    """The raw tensors equal those of the model that was saved, and the sizes equal those in
    transformers' config.
    """
    family = model.config.family
    saved = random_model(model.config.architecture).state_dict()
    stored = {family.raw_name(name): tensor for name, tensor in saved.items()}
    for name, tensor in model.weights.items():
        assert torch.equal(tensor, stored[name].double()), name
        assert not tensor.requires_grad
    assert not any(parameter.requires_grad for parameter in model.bridge.parameters())
    config = model.config
    assert (config.n_kv_heads, config.d_model, config.d_head) == head_sizes(model)
    assert config.d_vocab == VOCABULARY and config.has_lm_head
    assert config.causal == (family.kind == "decoder")
    assert bool(config.n_decoder_layers) == (family.kind == "encoder-decoder")
    plain = model_class(config.architecture)
    with torch.device("meta"):
        parameters = plain(model.bridge.original_model.config).parameters()
    assert count_tensors(model).total == sum(part.numel() for part in parameters)


def require_certified(model: Model) -> None:
    """The certificate holds, also for a text of nearly the largest length."""
    long = "The" + " bank" * (36 if model.config.n_ctx == 40 else 80)
    certificate = certify(model, [*DEFAULT_TEXTS, long]).require()
    assert all(row.scale > 0.05 for row in certificate.rows)
    assert certificate.worst.error > 0  # the two sides are separate computations


def require_logits_of_hugging_face(model: Model, folder: Path) -> None:
    """The logits of the hooked model and of the forward from scratch equal the logits of a model
    that transformers loads from the folder.
    """
    family = model.config.family
    how = {"experts_implementation": "eager"} if family.routed else {}
    plain = model_class(model.config.architecture).from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", **how
    )
    if model.config.n_decoder_layers:
        pair = trace(model, TEXT, TARGET)
        inputs = {
            "input_ids": torch.tensor([pair.source.ids]),
            "decoder_input_ids": torch.tensor([pair.target.ids]),
        }
        stacks = read_stacks(model.weights, model.config, model.modules)
        memory = variants.encode(stacks, pair.source.ids)
        [scratch] = variants.decode(stacks, pair.target.ids, memory).logits
        hooked = pair.logits
    else:
        record = trace(model, TEXT)
        ids = torch.tensor(record.tokens.ids)
        inputs = {"input_ids": ids[None]}
        weights = read_weights(model)
        terms = blocks.position_terms(weights, len(ids))
        *_, last = variants.run_texts(weights, [record.tokens.ids], len(weights.blocks), terms)
        [resid] = last.everywhere(last.resid_post)
        scratch = forward.unembed(weights, resid)
        hooked = record.logits
    with torch.no_grad():
        expected = plain.eval()(**inputs).logits[0]
    close = closeness(model)
    assert_near(hooked, expected, close)
    assert_near(scratch, expected if scratch.dim() == 2 else expected[-1], close)


def closeness(model: Model) -> dict[str, float]:
    """The tolerance between two computations of the logits if the family's code rounds."""
    stacks = read_stacks(model.weights, model.config, model.modules).values()
    mixers = [block.mixer for stack in stacks for block in stack.blocks if block.mixer]
    if mixers:
        return {"rtol": 0, "atol": RECURRENT}
    if model.config.family.adapter_rounds_differently:
        return ROUNDED
    return near(model.config.architecture)


def traces(model: Model) -> list[Trace]:
    if not model.config.n_decoder_layers:
        return [trace(model, TEXT)]
    pair = trace(model, TEXT, TARGET)
    return [pair.encoder, pair.decoder, pair.cross]


def require_heads_that_sum(record: Trace) -> None:
    """ΔE of all heads plus b_O is the write of attention, and ΔE by source sums to ΔE."""
    for layer, block in enumerate(record.stack.blocks):
        if block.mixer is not None:
            continue
        at = len(record.tokens) - 1
        heads = range(record.stack.config.n_heads)
        writes = torch.stack([record.delta_e(layer, head, at) for head in heads])
        whole = writes.sum(0) if block.b_o is None else writes.sum(0) + block.b_o
        assert_near(whole, record.attn_out[layer, at], EXACT)
        by_source = record.delta_e_by_source(layer, 1, at)
        assert_near(by_source.sum(0), writes[1], EXACT)


def require_swap_of_a_head(model: Model) -> None:
    """The run of a swap equals a whole forward of the hooked model, in the first layer
    with heads, at a word before other tokens.
    """
    layer = next(n for n in range(model.config.n_layers) if model.config.has_heads(n))
    text, *_ = random_rows(model)
    donor = random_z(model, model.config.n_layers)[:1]
    effects = swap_heads(read_weights(model), [text], donor, every_direction(model))
    base, swap = run_with_swaps(model, text, [{}, {(layer, 2): donor[0, layer, 2]}])[0][-1]
    assert (effects[0, layer, 2] - (swap - base)).abs().max() <= bound(model) * base.abs().max()
    assert (swap - base).abs().max() > 0.01
