"""Models whose owner's hooks stay active: every number compared with forwards of the owner's
object with its hooks, without any code of the library.
"""

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from families import family_tokenizer, make_family
from hooked_runs import bound
from test_load import refusal
from test_objects import boot, fingerprint, ids, in_memory
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

import probe
from probe.experiments import sets
from probe.explorer.session import Explorer
from probe.model import decomposition
from probe.model.tokens import tokenize
from probe.patching import hooked
from probe.patching.hooked import ends_as_weights_say

A = "The mole dug under the river bank after the flood"
B = "The mole dug under the apple bank after the flood"
TOKENS = (17, 30)  # ids; the tokens of a random model have no meaning
SHIFT = 0.5

# The blocks of each kind, and the output projection and the MLP of a block.
BLOCKS: dict[str, Callable[[Any], nn.ModuleList]] = {
    "gpt2": lambda model: model.transformer.h,
    "llama": lambda model: model.model.layers,
    "bert": lambda model: model.bert.encoder.layer,
}
WRITERS: dict[str, Callable[[Any], nn.Module]] = {
    "gpt2": lambda block: block.attn.c_proj,
    "llama": lambda block: block.self_attn.o_proj,
    "bert": lambda block: block.attention.output.dense,
}


def first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def steer(module: nn.Module, args: Any, output: Any) -> Any:
    """A hook whose addition depends on the stream, so that it is not a constant."""
    changed = first(output) + SHIFT * torch.tanh(first(output).flip(-1))
    return (changed, *output[1:]) if isinstance(output, tuple) else changed


def steered(kind: str) -> Any:
    source = in_memory(kind).double()
    BLOCKS[kind](source)[0].register_forward_hook(steer)
    return source


def load_with_hooks(source: Any, kind: str) -> probe.Model:
    return probe.load(source, tokenizer=family_tokenizer(kind), hooks="keep")


def run_source(
    source: Any,
    kind: str,
    row: tuple[int, ...],
    at: int,
    replacements: dict[int, Tensor] | None = None,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """A forward of the object itself: the last stream and the logits at a position, and the
    inputs of every block's output projection there, with an optional replacement in one block.
    """
    inputs: list[Tensor] = []
    last: list[Tensor] = []

    def change(layer: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
            z = args[0].clone()
            inputs.append(z[0, at].clone())
            if replacements is not None and layer in replacements:
                z[0, at] = replacements[layer]
            return (z,)

        return hook

    blocks = BLOCKS[kind](source)
    handles = [
        WRITERS[kind](block).register_forward_pre_hook(change(layer))
        for layer, block in enumerate(blocks)
    ]
    handles.append(
        blocks[-1].register_forward_hook(lambda module, args, out: last.append(first(out)[0, at]))
    )
    with torch.no_grad():
        logits = source(torch.tensor([row])).logits[0, at]
    for handle in handles:
        handle.remove()
    return last[0], logits, inputs


@pytest.mark.parametrize("metric", [None, TOKENS], ids=["coordinate", "tokens"])
@pytest.mark.parametrize("kind", BLOCKS)
def test_every_swap_equals_a_forward_of_the_object_itself(kind: str, metric: Any) -> None:
    source = steered(kind)
    before = fingerprint(source)
    model = load_with_hooks(source, kind)
    frame = probe.patch(model, A, against=B, at="bank", metric=metric)
    tokens = [tokenize(model, text) for text in (A, B)]
    at = tokens[0].positions_of("bank")[-1]
    rows = [text.ids if not model.config.causal else text.ids[: at + 1] for text in tokens]
    ends = [run_source(source, kind, row, at) for row in rows]
    way = ends[0][0] - ends[1][0]

    def value(run: tuple[Tensor, Tensor, list[Tensor]]) -> float:
        if metric is None:
            return float((run[0] - ends[1][0]) @ way / (way @ way))
        return float(run[1][metric[0]] - run[1][metric[1]])

    # 1e-10 in general; with rounding to float32 in between, relative to the size of the input.
    scale = float(ends[0][1].abs().max()) if metric else 1.0
    allowed = bound(model) * (max(1.0, scale) if model.config.family.in_float32 else 1.0)
    size = model.config.d_head
    for row in frame.itertuples():
        columns = slice(row.head * size, (row.head + 1) * size)
        effects = []
        for recipient, donor in ((1, 0), (0, 1)):
            z = ends[recipient][2][row.layer].clone()
            z[columns] = ends[donor][2][row.layer][columns]
            changed = run_source(source, kind, rows[recipient], at, {row.layer: z})
            effects.append(value(changed) - value(ends[recipient]))
        assert abs(row.denoise - effects[0]) <= allowed and abs(row.noise + effects[1]) <= allowed
    assert abs(frame["gap"][0] - (value(ends[0]) - value(ends[1]))) <= allowed
    assert fingerprint(source) == before


def on_first_token(module: nn.Module, args: Any, output: Any) -> Any:
    changed = first(output).clone()
    changed[:, 0] += SHIFT * torch.tanh(changed[:, 0].flip(-1))
    return (changed, *output[1:]) if isinstance(output, tuple) else changed


@pytest.mark.parametrize(
    ("kind", "hook", "shortcut"),
    [("gpt2", steer, True), ("llama", steer, True), ("bert", steer, True)]
    + [("llama", on_first_token, False)],
)
def test_forwards_are_shared_where_that_changes_nothing(
    kind: str, hook: Callable[..., Any], shortcut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = in_memory(kind).double()
    BLOCKS[kind](source)[0].register_forward_hook(hook)
    model = load_with_hooks(source, kind)
    a, b = "The mole dug under the river bank", "The mole dug under the apple bank"
    swap = partial(probe.patch, model, a, against=b, at="bank")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = swap()
    messages = [str(each.message) for each in caught if "Cannot share" in str(each.message)]
    assert bool(messages) is not shortcut
    monkeypatch.setattr(hooked, "_is_same", lambda *_: False)
    with pytest.warns(RuntimeWarning, match="every variant runs its whole text in every layer"):
        whole = swap()
    pd.testing.assert_frame_equal(frame, whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize("parts", ["mlp", "stream", "positions"])
def test_hooks_that_change_nothing_give_the_results_of_the_fused_forward_for_every_part(
    parts: str,
) -> None:
    source = in_memory("gpt2").double()
    plain = probe.load(source, tokenizer=family_tokenizer("gpt2"))
    BLOCKS["gpt2"](source)[1].register_forward_hook(lambda module, args, output: output)
    model = load_with_hooks(source, "gpt2")
    options: dict[str, Any] = {"at": "bank", "parts": parts}
    for metric in (None, TOKENS, lambda logits: logits.logsumexp(-1)):
        expected = probe.patch(plain, [A, B], against=[B, A], metric=metric, **options)
        frame = probe.patch(model, [A, B], against=[B, A], metric=metric, **options)
        pd.testing.assert_frame_equal(frame, expected, rtol=0, atol=1e-10)


def test_sets_of_heads_are_swapped_as_by_the_fused_forward_and_hooks_have_an_effect() -> None:
    source = in_memory("gpt2").double()
    plain = probe.load(source, tokenizer=family_tokenizer("gpt2"))
    handle = BLOCKS["gpt2"](source)[0].register_forward_hook(lambda module, args, output: output)
    same = load_with_hooks(source, "gpt2")
    handle.remove()
    BLOCKS["gpt2"](source)[0].register_forward_hook(steer)
    steered_model = load_with_hooks(source, "gpt2")
    texts = [tokenize(plain, text) for text in (A, B)]
    at = [text.positions_of("bank")[-1] for text in texts]
    rows = [text.ids[: pos + 1] for text, pos in zip(texts, at, strict=True)]
    states = probe.target_states(plain, texts, at)
    generator = torch.Generator().manual_seed(0)
    d_model = plain.config.d_model
    sets = torch.rand(5, *states.z.shape[1:3], generator=generator) < 0.5
    common = torch.randn(3, d_model, generator=generator, dtype=torch.float64)
    by_row = torch.randn(2, 2, d_model, generator=generator, dtype=torch.float64)
    after_norm = torch.randn(2, 3, d_model, generator=generator, dtype=torch.float64)
    several = torch.randn(2, 2, 4, d_model, generator=generator, dtype=torch.float64)
    z = states.z.flip(0)
    for directions in (common, by_row, after_norm, several):
        by_model = [
            probe.swap_sets(probe.read_weights(model), rows, z, sets, directions)
            for model in (plain, same, steered_model)
        ]
        assert (by_model[0] - by_model[1]).abs().max() <= 1e-10
        assert (by_model[0] - by_model[2]).abs().max() > 1e-3


def test_the_last_stage_is_the_input_of_the_unembedding_after_the_dense_layer_of_the_head() -> None:
    source = in_memory("modernbert-decoder").double()
    plain = probe.load(source, tokenizer=family_tokenizer("modernbert-decoder"))
    source.model.layers[0].register_forward_hook(lambda module, args, output: output)
    same = load_with_hooks(source, "modernbert-decoder")
    rows = [(5, 6, 7, 8)]
    layers, heads = plain.config.n_layers, plain.config.n_heads
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    z = draw(1, layers, heads, plain.config.d_head)
    sets = torch.rand(5, layers, heads, generator=generator) < 0.5
    directions = draw(1, layers + 1, plain.config.d_model)
    effects, by_forwards = (
        probe.swap_sets(probe.read_weights(model), rows, z, sets, directions)
        for model in (plain, same)
    )
    assert effects[..., -1].abs().max() > 1e-3
    assert (effects - by_forwards).abs().max() <= bound(plain) * effects.abs().max()


# --- where hooks may be ---------------------------------------------------------------------------


def test_hooks_of_a_bridge_stay_on_by_their_points(tmp_path: Path) -> None:
    bridge = boot(make_family(tmp_path / "gpt2", "gpt2"))
    plain = probe.load(bridge)
    bridge.add_hook("blocks.0.hook_resid_post", lambda resid, hook: resid + SHIFT * resid.tanh())
    bridge.blocks[1].mlp.register_forward_hook(lambda module, args, out: 2 * out)
    model = probe.load(bridge, hooks="keep")
    assert model.origin.hooks == ("blocks.0.hook_out", "blocks.1.mlp")
    assert model.origin.hooked == (
        "run with hooks on blocks.0.hook_out, blocks.1.mlp, without a certificate"
    )
    with torch.no_grad():
        logits = bridge(ids)
        assert torch.equal(model.bridge(ids), logits)
        assert not torch.allclose(plain.bridge(ids), logits)
    trace = probe.trace(model, A)
    assert torch.allclose(trace.resid_pre[1], trace.resid_post[0])
    bridge.reset_hooks()
    with torch.no_grad():
        assert torch.equal(model.bridge(ids), logits), (
            "a Model keeps the hooks that it was made with"
        )


def test_the_stream_after_the_last_block_includes_its_hook() -> None:
    source = in_memory("gpt2")
    vector = torch.linspace(-1, 1, source.config.n_embd)
    plain = probe.load(source, tokenizer=family_tokenizer("gpt2"))
    source.transformer.h[-1].register_forward_hook(lambda module, args, out: first(out) + vector)
    added = (
        probe.trace(load_with_hooks(source, "gpt2"), A).resid_post
        - probe.trace(plain, A).resid_post
    )
    assert torch.equal(added[0], torch.zeros_like(added[0]))
    torch.testing.assert_close(added[1], vector.expand_as(added[1]), rtol=0, atol=1e-5)


def test_hooks_after_the_last_block_are_distinguished_from_others() -> None:
    source = in_memory("gpt2")
    handle = source.lm_head.register_forward_hook(lambda module, args, out: out + 1)
    model = load_with_hooks(source, "gpt2")
    assert not ends_as_weights_say(model)
    weights = probe.read_weights(model)
    z = torch.zeros(1, 2, model.config.n_heads, model.config.d_head)
    none = torch.zeros(1, *z.shape[1:3], dtype=torch.bool)
    with pytest.raises(probe.InputError) as caught:
        probe.swap_sets(weights, [(5, 6, 7)], z, none, torch.ones(1, 3, model.config.d_model))
    assert str(caught.value) == (
        "Cannot swap heads of GPT2LMHeadModel: got directions of 3 stages for 2 layers, expected one "
        "for each layer, because a hook acts after the last layer. Read before the final norm."
    )
    handle.remove()
    source.transformer.h[0].register_forward_hook(steer)
    assert ends_as_weights_say(load_with_hooks(source, "gpt2"))


def test_the_logit_lens_and_a_logit_direction_are_refused_with_hooks_after_the_last_block() -> None:
    source = in_memory("gpt2")
    handle = source.transformer.ln_f.register_forward_hook(lambda module, args, out: 1.5 * out)
    trace = probe.trace(load_with_hooks(source, "gpt2"), A)
    for read, doing in (
        (lambda of: decomposition.logit_lens(of, -1), "the logit lens"),
        (lambda of: decomposition.logit_direction(of, -1, [5]), "a logit's direction"),
    ):
        with pytest.raises(probe.InputError) as caught:
            read(trace)
        assert str(caught.value).startswith(
            f"Cannot read {doing} of GPT2LMHeadModel, run with hooks on transformer.ln_f, without a "
            "certificate: the weights after the last block give other logits than "
            "the model (off by "
        )
    handle.remove()
    source.transformer.h[0].register_forward_hook(steer)
    trace = probe.trace(load_with_hooks(source, "gpt2"), A)
    probabilities = trace.logits.double().softmax(-1).float()
    for at in range(len(trace.tokens)):
        lens = decomposition.logit_lens(trace, at)[-1]
        torch.testing.assert_close(lens, probabilities[at], rtol=1e-4, atol=1e-6)


def test_results_with_hooks_name_the_hooks() -> None:
    model = load_with_hooks(steered("gpt2"), "gpt2")
    description = "GPT2LMHeadModel, run with hooks on transformer.h.0, without a certificate"
    assert description in repr(probe.trace(model, A))
    assert probe.patch(model, A, against=B, at=-1).attrs["model"] == description


def test_an_object_is_loaded_again_when_its_hooks_change() -> None:
    source = in_memory("gpt2")
    handle = source.transformer.h[0].register_forward_hook(steer)
    model = load_with_hooks(source, "gpt2")
    assert probe.load(source, hooks="keep") is model
    source.transformer.h[1].register_forward_hook(steer)
    assert load_with_hooks(source, "gpt2").origin.hooks == ("transformer.h.0", "transformer.h.1")
    handle.remove()
    assert load_with_hooks(source, "gpt2").origin.hooks == ("transformer.h.1",)


def test_without_hooks_there_is_nothing_to_keep() -> None:
    model = load_with_hooks(in_memory("gpt2"), "gpt2")
    assert not model.origin.hooks and probe.certify(model).ok


# --- refusals -------------------------------------------------------------------------------------


def by_position(module: nn.Module, args: Any, output: Any) -> Any:
    return first(output) + torch.zeros(1, 3, first(output).shape[-1])


def by_row(module: nn.Module, args: Any, output: Any) -> Any:
    # Flipped, because a norm removes values that are equal in every dimension.
    return first(output) + torch.arange(len(first(output)))[:, None, None] * first(output).flip(-1)


def by_calls() -> Callable[..., Any]:
    calls: list[int] = []

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        calls.append(1)
        return first(output) + len(calls) * first(output).flip(-1)

    return hook


ALIKE = "of the scale). Let every hook be a function of what it is given, row by row."
KEEP_REFUSED = {
    "a part that is not run": (
        lambda model: model.transformer.h[0].attn.c_attn.register_forward_hook(steer),
        (
            "TransformerLens, through which it is read, does not run transformer.h.0.attn.c_attn, "
            "which has a hook. Put the hook on a block, its attention or its MLP."
        ),
    ),
    "one length": (
        lambda model: model.transformer.h[0].register_forward_hook(by_position),
        "its hooks (transformer.h.0) fail on a short text (The size of tensor a",
    ),
    "row by row": (
        lambda model: model.transformer.h[0].register_forward_hook(by_row),
        "with its hooks two texts together give something else than each alone (off by ",
    ),
    "counting": (
        lambda model: model.transformer.h[0].register_forward_hook(by_calls()),
        "a copy with the same hooks computes something else than it does (off by ",
    ),
}


@pytest.mark.parametrize(("add_hook", "message"), KEEP_REFUSED.values(), ids=KEEP_REFUSED)
def test_hooks_that_cannot_be_kept_are_refused_in_a_sentence(
    add_hook: Callable[[Any], Any], message: str
) -> None:
    source = in_memory("gpt2")
    add_hook(source)
    sentence = refusal(source, tokenizer=family_tokenizer("gpt2"), hooks="keep")
    assert sentence.startswith(f"Cannot load the GPT2LMHeadModel: {message}")
    assert not message.endswith("(off by ") or sentence.endswith(ALIKE)


def test_hooks_of_an_encoder_decoder_and_of_folded_weights_are_refused(tmp_path: Path) -> None:
    source = in_memory("t5")
    source.encoder.block[0].register_forward_hook(steer)
    assert refusal(source, tokenizer=family_tokenizer("t5"), hooks="keep") == (
        "Cannot load the T5ForConditionalGeneration: its hooks (encoder.block.0) cannot stay on in "
        "an encoder-decoder. Give it without them."
    )
    bridge = boot(make_family(tmp_path / "gpt2", "gpt2"))
    bridge.enable_compatibility_mode()
    bridge.add_hook("blocks.0.hook_resid_post", lambda resid, hook: resid)
    assert refusal(bridge, hooks="keep") == (
        "Cannot load the bridge: it is in compatibility mode, and its hooks (blocks.0.hook_out) were "
        "made for folded weights. Give it without enable_compatibility_mode()."
    )


def test_hooks_are_kept_for_objects_only_and_on_request() -> None:
    with pytest.raises(probe.InputError) as caught:
        probe.load("tiny-senses", hooks="keep")
    assert str(caught.value) == (
        "Cannot load tiny-senses with hooks=: a name, a folder and a file have no hooks. Omit it."
    )
    with pytest.raises(probe.InputError) as caught:
        probe.load(in_memory("gpt2"), hooks="all")
    assert str(caught.value) == (
        "Cannot load a model with hooks='all': expected \"keep\", which leaves the model's hooks on, "
        "or nothing. Give one of these."
    )


def test_analyses_from_weights_alone_are_refused_in_a_sentence() -> None:
    model = load_with_hooks(steered("gpt2"), "gpt2")
    weights = probe.read_weights(model)
    rows = [tokenize(model, text).ids for text in (A, B)]
    direction = torch.ones(1, model.config.d_model, dtype=model.dtype)
    from_weights = (
        "Cannot run GPT2LMHeadModel from its weights: it was loaded with its hooks (transformer.h.0), "
        "which run only in whole forwards. Ask probe.patch or probe.study, or load it without "
        "hooks."
    )
    for run in (
        lambda: probe.swap_pairs(weights, rows[:1], rows[1:], direction, depth=2),
        lambda: probe.trace_positions(weights, rows[:1], rows[1:], direction, depth=2),
    ):
        with pytest.raises(probe.InputError) as caught:
            run()
        assert str(caught.value) == from_weights
    against_weights = (
        "Cannot check GPT2LMHeadModel against its weights: it is run with hooks on transformer.h.0, "
        "without a certificate, and the effect of hooks does not follow from weights. Load it without "
        "hooks, or ask probe.patch or probe.study, which need no certificate then."
    )
    for run in (
        lambda: probe.certify(model),
        lambda: probe.survey(model),
        lambda: probe.evaluate(model, sentences=probe.lexicon.expand("bank").sentences[:48]),
    ):
        with pytest.raises(probe.InputError) as caught:
            run()
        assert str(caught.value) == against_weights
    with pytest.raises(probe.InputError) as caught:
        probe.cues(model, "bank")
    assert str(caught.value) == (
        "Cannot scan cues of GPT2LMHeadModel: it is run with hooks on transformer.h.0, without a "
        "certificate, and a scan runs from the weights alone. Load it without hooks."
    )
    with pytest.raises(probe.InputError) as caught:
        probe.walk(model, A, at="bank")
    assert str(caught.value) == (
        "Cannot walk a text through GPT2LMHeadModel: it is run with hooks on transformer.h.0, without "
        "a certificate, and every step of a walk is recomputed from the weights alone. Load it "
        "without hooks, or ask probe.trace or probe.patch."
    )
    with pytest.raises(probe.InputError) as caught:
        probe.decompose(model, A, at="bank", tokens=TOKENS)
    assert str(caught.value) == (
        "Cannot decompose a logit of GPT2LMHeadModel: it is run with hooks on transformer.h.0, without "
        "a certificate, and the write of a hook does not belong to any component. Load it without "
        "hooks, or swap with probe.patch."
    )
    with pytest.raises(probe.InputError) as caught:
        Explorer(model)
    assert str(caught.value) == (
        "Cannot explore GPT2LMHeadModel: it is run with hooks on transformer.h.0, without a "
        "certificate, and the explorer runs from the weights alone. Use probe.patch or probe.study, "
        "or load it without hooks."
    )
    with pytest.raises(probe.InputError) as caught:
        probe.study(model, "bank", controls=["table"])
    assert str(caught.value).endswith("Omit controls, or study the model without hooks.")


# --- a study --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def studies() -> tuple[Any, Any]:
    """Studies of one object: without hooks, and with a hook that changes nothing."""
    folder = Path(probe.__file__).parent / "model" / "embedded" / "tiny-senses"
    source = GPT2LMHeadModel.from_pretrained(folder)
    sentences = probe.lexicon.expand("bank").sentences
    frames = list(dict.fromkeys(sentence.frame for sentence in sentences))[:2]
    corpus = [sentence for sentence in sentences if sentence.frame in frames]
    options: dict[str, Any] = {"sentences": corpus, "permutations": 99, "max_pairs": 4}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sets, "CURVE_PAIRS", 2)
        without = probe.study(source, controls=(), **options)
        source.transformer.h[1].register_forward_hook(lambda module, args, output: output.clone())
        with_hooks = probe.study(probe.load(source, hooks="keep"), **options)
    return without, with_hooks


@pytest.mark.slow
def test_a_study_with_hooks_that_change_nothing_equals_the_study_without_hooks(
    studies: Any,
) -> None:
    without, with_hooks = studies
    for name in ("heads", "by_depth", "depth", "curves", "random_sets", "words"):
        assert len(without.frames[name])
        pd.testing.assert_frame_equal(
            with_hooks.frames[name], without.frames[name], rtol=1e-3, atol=1e-4
        )
    for name in ("shares", "head_parts", "positions", "edges", "paths"):
        assert len(without.frames[name]) and name not in with_hooks.frames, name
    assert len(without.frames["decomposition"]) and not len(with_hooks.frames["decomposition"])
    assert not len(with_hooks.frames["certificate"])


@pytest.mark.slow
def test_a_study_with_hooks_states_that_it_has_no_certificate(studies: Any, tmp_path: Path) -> None:
    with_hooks = studies[1]
    hooked = "run with hooks on transformer.h.1, without a certificate"
    assert repr(with_hooks) == f"<Study of bank in tiny-senses: 19 tables, {hooked}>"
    assert f"tiny-senses is {hooked}: every swap is a whole forward" in with_hooks._repr_html_()
    page = probe.write(with_hooks, tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text())["hooked"] == hooked
    text = page.read_text()
    assert f"tiny-senses is {hooked}: every swap is a whole forward" in text
    assert f"No certificate was asked for: the model is {hooked}" in text
    assert "The hooked model and the from-scratch math agree" not in text
