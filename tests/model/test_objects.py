"""Models in memory: accepted and shared ones, objects that stay unchanged, and refused ones with
their messages.
"""

import copy
import hashlib
import json
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from checkpoints import make_checkpoint, make_model, make_tokenizer
from families import (
    REPRESENTATIVES,
    each_family,
    family_model,
    family_tokenizer,
    make_family,
    model_class,
    random_model,
)
from seeds import mostly_campaign
from test_load import refusal
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoTokenizer, PreTrainedModel

import probe
from probe.model import load as loading
from probe.model import objects
from probe.model.architectures import FAMILIES
from probe.model.architectures.family import without

NO_ADAPTERS = "PEFT is not installed; pip install peft, which no number of probe depends on"
NO_NNSIGHT = "nnsight is not installed; pip install nnsight, which no number of probe depends on"
TEXT = "The river bank"
ids = torch.tensor([[5, 6, 7, 30]])


# Families whose weights differ between an object and a file: head by head, another name for the
# unembedding, experts in one tensor.
STORED_DIFFERENTLY = ("gpt_neox", "mixtral", "bart")


def in_memory(kind: str, *, architecture: str = "", **changes: object) -> PreTrainedModel:
    """A random Hugging Face model of the family, without a file."""
    return random_model(kind, seed=3, architecture=architecture, **changes)


def fingerprint(model: nn.Module) -> tuple[object, ...]:
    """Everything in a model that loading could change: tensors, modules, hooks, modes, config."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + str((tensor.dtype, tensor.data_ptr())).encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy())
    modules = [
        (name, type(module), module.training, len(module._forward_hooks), module.forward)
        for name, module in model.named_modules()
        if not hasattr(module, "weight")
    ]
    needs = [tensor.requires_grad for tensor in model.parameters()]
    stated = str(model.config.to_dict()) + str(model.config._attn_implementation)
    return digest.hexdigest(), str(modules), needs, stated


def storages(tensors: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


# --- Hugging Face models --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", (*REPRESENTATIVES, *STORED_DIFFERENTLY))
def test_a_hugging_face_model_is_certified_shares_its_weights_and_stays_as_it_is(kind: str) -> None:
    source = in_memory(kind)
    source.train()  # loading must not change its mode
    before = fingerprint(source)
    model = probe.load(source, tokenizer=family_tokenizer(kind))
    assert probe.certify(model).require().ok
    assert fingerprint(source) == before
    memory = storages(source.state_dict().values())
    optional = model.config.family.optional_weights
    shared = [tensor for name, tensor in model.weights.items() if name not in optional]
    assert storages(shared) <= memory
    assert (model.name, model.origin.kind) == (type(source).__name__, "in memory")
    assert model.origin.read == type(source).__name__ and len(model.origin.sha256) == 64
    assert probe.load(source) is model, "an object is loaded once"


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox"])
def test_memory_beyond_the_object(kind: str) -> None:
    """All tensors of the Model whose memory is not the object's, such as TransformerLens' copies
    of queries, keys and values that are stored together.
    """
    source = in_memory(kind)
    model = probe.load(source, tokenizer=family_tokenizer(kind))
    mine = {t.untyped_storage().data_ptr(): t for t in (*model.bridge.parameters(),)}
    mine |= {t.untyped_storage().data_ptr(): t for t in model.weights.values()}
    memory = storages(source.state_dict().values())
    extra = sum(t.untyped_storage().nbytes() for key, t in mine.items() if key not in memory)
    assert 1 + extra / sum(p.nbytes for p in source.parameters()) <= 1.05


def test_an_object_and_a_file_of_the_same_numbers_give_the_same(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "llama", "llama")
    source = transformers.LlamaForCausalLM.from_pretrained(folder)
    model, from_file = probe.load(source), probe.load(folder)
    assert model.config == from_file.config and model.name == "llama"
    assert all(torch.equal(model.weights[name], t) for name, t in from_file.weights.items())
    assert torch.equal(model.bridge(ids), from_file.bridge(ids))
    manifest = probe.provenance.manifest("m", model.origin, seed=0, command="", data_sha256="")
    assert manifest["origin"] == {
        "kind": "in memory",
        "location": "llama",
        "file": "",
        "revision": None,
    }
    assert manifest["weights_read_from"] == "LlamaForCausalLM"
    assert manifest["weights_sha256"] == model.origin.sha256 != from_file.origin.sha256


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "by name"])
def test_the_random_state_of_the_caller_is_unchanged(kind: str) -> None:
    """For example in training, if somebody inspects the model between two steps."""
    by_name = kind == "by name"
    source = "tiny-senses" if by_name else in_memory(kind)
    before = torch.get_rng_state()
    model = probe.load(source, tokenizer=None if by_name else family_tokenizer(kind))
    objects_after = torch.get_rng_state()
    probe.model.load.untrained(model, seed=0)
    assert torch.equal(before, objects_after) and torch.equal(before, torch.get_rng_state())


def test_hooks_on_every_module_of_the_process_are_refused() -> None:
    source = in_memory("llama")
    handle = register_module_forward_hook(lambda module, args, output: None)
    try:
        with pytest.raises(probe.InputError) as error:
            probe.load(source, tokenizer=family_tokenizer("llama"))
    finally:
        handle.remove()
    assert str(error.value) == (
        "Cannot run a model with a hook on every module of the process "
        "(torch.nn.modules.module.register_module_forward_hook or the like): it changes the "
        "computation without changing the weights. Remove the hook."
    )
    probe.load(source, tokenizer=family_tokenizer("llama"))


def test_a_module_instead_of_a_tensor_is_named_and_tuple_outputs_are_read() -> None:
    source = in_memory("llama")
    source.model.layers[0].mlp.up_proj = nn.Identity()
    with pytest.raises(probe.ModelError) as error:
        probe.load(source, tokenizer=family_tokenizer("llama"))
    assert str(error.value) == (
        "Cannot load the LlamaForCausalLM: the tensor layers.0.mlp.up_proj.weight is missing from "
        "it, which has a Identity there. Give a plain Llama, nothing of it quantized, pruned or "
        "replaced."
    )
    tuples = in_memory("bert")
    tuples.config.return_dict = False
    assert probe.certify(probe.load(tuples, tokenizer=family_tokenizer("bert"))).ok


@pytest.mark.parametrize("kind", ["bert", "gpt2", "opt"])
def test_a_model_without_head(kind: str) -> None:
    source = in_memory(kind, architecture=FAMILIES[kind].classes_without_lm_head[0])
    bare = probe.load(source, tokenizer=family_tokenizer(kind))
    assert not bare.config.has_lm_head and probe.certify(bare).require().ok
    texts = "The mole dug under the river bank", "The mole dug under the apple bank"
    assert len(probe.patch(bare, texts[0], against=texts[1], at="bank")) == 2 * 4


def test_an_untied_model_and_float64() -> None:
    untied = in_memory("gpt2", tie_word_embeddings=False).double()
    loaded = probe.load(untied, tokenizer=family_tokenizer("gpt2"))
    assert not loaded.config.tied and loaded.dtype == torch.float64
    assert probe.certify(loaded).require().ok
    single = probe.load(untied, tokenizer=family_tokenizer("gpt2"), dtype="float32")
    assert single.dtype == torch.float32 and loaded.origin.stored == "float64"


def test_a_change_of_the_object_is_detected(tmp_path: Path) -> None:
    source = in_memory("llama")
    first = probe.load(source, tokenizer=family_tokenizer("llama"))
    with torch.no_grad():
        source.model.norm.weight.mul_(2)
    second = probe.load(source, tokenizer=family_tokenizer("llama"))
    assert second is not first and second.origin.sha256 != first.origin.sha256
    without_bos = probe.load(source, tokenizer=family_tokenizer("llama"), prepend_bos=False)
    assert without_bos is not second


def silenced(source: Any) -> None:
    mlp = source.model.layers[1].mlp
    mlp.forward = lambda x: 0 * x


def scaled(source: Any) -> None:
    source.model.layers[0].self_attn.scaling = 0.05


def rectified(source: Any) -> None:
    source.model.layers[1].mlp.act_fn = nn.ReLU()


def with_a_tanh(source: Any) -> None:
    source.lm_head = nn.Sequential(source.lm_head, nn.Tanh())


@pytest.mark.parametrize("change", [silenced, scaled, rectified, with_a_tanh])
def test_a_change_of_the_computation_is_detected_after_loading(
    change: Callable[[Any], None],
) -> None:
    source = in_memory("llama")
    model = probe.load(source, tokenizer=family_tokenizer("llama"))
    assert probe.load(source) is model
    change(source)
    with pytest.raises(probe.ModelError, match="^Cannot load the LlamaForCausalLM: "):
        probe.load(source)


def test_a_change_of_a_setting_gives_the_numbers_that_follow_from_it() -> None:
    source = in_memory("llama")
    first = probe.load(source, tokenizer=family_tokenizer("llama"))
    source.config.rms_norm_eps = 0.5
    for module in source.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 0.5
    second = probe.load(source)
    assert second is not first
    with torch.no_grad():
        error = (
            (probe.trace(second, TEXT).logits - source(ids_of_text(second)).logits[0]).abs().max()
        )
    assert error < 1e-5


def ids_of_text(model: probe.Model) -> torch.Tensor:
    return torch.tensor([probe.tokenize(model, TEXT).ids])


def test_experts_are_shared_and_a_coarse_type_does_not_change_the_routing() -> None:
    source = in_memory("mixtral")
    model = probe.load(source, tokenizer=family_tokenizer("mixtral"))
    memory = storages(source.parameters())
    assert (
        storages(model.bridge.parameters()) <= memory and storages(model.weights.values()) <= memory
    )
    stated = source.config._experts_implementation, source.config._attn_implementation
    coarse = in_memory("mixtral").to(torch.bfloat16)
    message = 'or pass dtype="float32".$'
    with pytest.raises(probe.ModelError, match=message):  # its positions are rounded, too
        probe.load(coarse, tokenizer=family_tokenizer("mixtral"))
    coarse.model.rotary_emb = in_memory("mixtral").model.rotary_emb  # as from_pretrained has them
    assert probe.certify(probe.load(coarse, tokenizer=family_tokenizer("mixtral"))).require().ok
    exact = in_memory("mixtral").double()  # in which transformers runs no experts together
    assert probe.load(exact, tokenizer=family_tokenizer("mixtral")).dtype == torch.float64
    for variant in (source, coarse, exact):
        assert (
            variant.config._experts_implementation,
            variant.config._attn_implementation,
        ) == stated


def test_a_qwen3_moe_need_not_state_the_size_of_its_heads() -> None:
    stated = without(FAMILIES["qwen3_moe"].tiny_config, "head_dim")
    architecture = model_class("qwen3_moe")
    source = architecture(architecture.config_class(**stated))
    model = probe.load(source.eval(), tokenizer=family_tokenizer("qwen3_moe"))
    assert model.config.d_head == stated["hidden_size"] // stated["num_attention_heads"]


def test_autocast_is_refused_in_a_sentence() -> None:
    model = family_model("llama")
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(
            probe.InputError, match="^Cannot run a model under torch.autocast: .* Leave the"
        ),
    ):
        probe.trace(model, TEXT)


ROUNDED_PRODUCTS = {
    "medium": ("set_float32_matmul_precision", "medium", "highest"),
    "high": ("set_float32_matmul_precision", "high", "highest"),
    "oneDNN": ("backends.mkldnn.matmul.fp32_precision", "bf16", "ieee"),
    "oneDNN's convolutions": ("backends.mkldnn.conv.fp32_precision", "tf32", "none"),
    "a graphics card": ("backends.cuda.matmul.allow_tf32", True, False),
    "every product": ("backends.fp32_precision", "tf32", "none"),
}


@pytest.mark.parametrize("setting", ROUNDED_PRODUCTS)
def test_products_of_rounded_factors_are_refused_in_a_sentence(setting: str) -> None:
    name, rounded, plain = ROUNDED_PRODUCTS[setting]
    model = family_model("llama")
    holder, _, attribute = f"torch.{name}".rpartition(".")
    holder = attrgetter(holder.partition(".")[2])(torch) if "." in holder else torch

    def set_to(value: object) -> None:
        if callable(getattr(holder, attribute)):
            getattr(holder, attribute)(value)
        else:
            setattr(holder, attribute, value)

    set_to(rounded)
    try:
        with pytest.raises(
            probe.InputError, match="^Cannot run a model while torch may round .* or set torch.bac"
        ):
            probe.trace(model, TEXT)
    finally:
        set_to(plain)
    assert len(probe.trace(model, TEXT).tokens) > 1


def test_a_device_without_numbers_and_weights_of_inference_mode_are_refused() -> None:
    with pytest.raises(probe.InputError, match="^Cannot use the device 'meta': PyTorch"):
        probe.load(in_memory("llama"), tokenizer=family_tokenizer("llama"), device="meta")
    with torch.inference_mode():
        source = in_memory("llama")
    with pytest.raises(probe.ModelError, match=r"was made inside torch.inference_mode\(\), which"):
        probe.load(source, tokenizer=family_tokenizer("llama"))


def test_a_tokenizer_is_remembered_through_every_change_of_its_object() -> None:
    source = in_memory("llama")
    tokenizer = family_tokenizer("llama")
    first = probe.load(source, tokenizer=tokenizer)
    with torch.no_grad():
        source.model.norm.weight.mul_(2)
    second = probe.load(source)
    assert second is not first and second.tokenizer is tokenizer
    assert probe.load(source, dtype="float64").tokenizer is tokenizer
    replacement = family_tokenizer("llama")
    assert probe.load(source, tokenizer=replacement).tokenizer is replacement
    assert "its tokenizer is unknown" in refusal(in_memory("llama"))


def resized(folder: Path, rows: int, kind: str = "llama") -> PreTrainedModel:
    """The model of a folder with another number of rows in its embedding, as after tokens were
    added.
    """
    source = model_class(kind).from_pretrained(folder)
    source.resize_token_embeddings(rows)
    return source


RESIZED = (
    "its embedding has {rows} rows and its tokenizer {tokens} tokens, which padding does not explain; "
    "it may have been resized for another tokenizer. Pass tokenizer=, as "
    "AutoTokenizer.from_pretrained(...) gives it."
)


@pytest.mark.parametrize("kind", ["llama", "bert", "t5"])
def test_a_resized_embedding_asks_for_its_tokenizer(kind: str, tmp_path: Path) -> None:
    folder = make_family(tmp_path / kind, kind)
    source = resized(folder, 403, kind)
    tokens = len(family_tokenizer(kind))
    message = RESIZED.format(rows=403, tokens=tokens)
    assert refusal(source) == f"Cannot load the {model_class(kind).__name__}: {message}"
    extended = family_tokenizer(kind)
    extended.add_tokens([f"<extra {number}>" for number in range(403 - tokens)])
    model = probe.load(source, tokenizer=extended)
    assert model.config.d_vocab == 403 and probe.load(source) is model
    assert probe.tokenize(model, "the <extra 3> bank").ids.count(tokens + 3) == 1


def test_a_bridge_around_a_resized_model_asks_for_its_tokenizer(tmp_path: Path) -> None:
    """TransformerLens reads the old one from the model's source."""
    folder = make_family(tmp_path / "llama", "llama")
    bridge = TransformerBridge.boot_transformers(str(folder), hf_model=resized(folder, 403))
    assert "the bridge: its embedding has 403 rows and its tokenizer" in refusal(bridge)
    probe.load(bridge, tokenizer=family_tokenizer("llama"))


def test_a_tokenizer_given_before_is_not_used_for_an_embedding_resized_since() -> None:
    source = in_memory("llama")
    probe.load(source, tokenizer=family_tokenizer("llama"))
    source.resize_token_embeddings(403)
    assert "its embedding has 403 rows" in refusal(source)
    with torch.no_grad():
        source.lm_head.weight.mul_(1.5)  # a training step does not change this
    assert "its embedding has 403 rows" in refusal(source)
    model = probe.load(source, tokenizer=family_tokenizer("llama"))
    with torch.no_grad():
        source.lm_head.weight.mul_(1.5)
    assert probe.load(source).tokenizer is model.tokenizer


# Tokens and rows of published models; for the last four, only the config explains them.
PADDED = {
    "GPT-2": (50257, 50257, None),
    "T5": (32100, 32128, None),
    "Pythia 160M": (50277, 50304, None),
    "Pythia 12B": (50277, 50688, None),
    "Phi-2": (50295, 51200, None),
    "Phi-3": (32011, 32064, None),
    "Gemma 3": (262145, 262208, None),
    "OLMo 2": (100278, 100352, None),
    "ModernBERT": (50285, 50368, 50368),
    "Qwen2.5 0.5B": (151665, 151936, 151936),
    "Qwen3": (151669, 151936, 151936),
    "GPT-OSS": (200019, 201088, 201088),
}


@pytest.mark.parametrize(("tokens", "rows", "published"), PADDED.values(), ids=PADDED)
def test_a_published_embedding_is_padded_and_not_resized(
    tokens: int, rows: int, published: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "find_tokenizer", lambda source: Path(source))

    def read_config(folder: Path, *, prepend_bos: bool) -> Any:
        if published is None:
            raise probe.ModelError("It has no config.")
        return SimpleNamespace(d_vocab=published)

    monkeypatch.setattr(loading, "read_config", read_config)
    holder = objects.ModelObject(None, None, None, "the model")
    monkeypatch.setattr(objects.ModelObject, "source", "folder")

    def of(rows: int) -> Any:
        tokenizer = SimpleNamespace(get_vocab=lambda: {"last": tokens - 1})
        return SimpleNamespace(config=SimpleNamespace(d_vocab=rows), tokenizer=tokenizer)

    loading._require_unresized(holder, of(rows))
    for wrong_rows in (rows + 1, rows + 3, tokens + 10_001):
        with pytest.raises(probe.ModelError, match=f"its embedding has {wrong_rows:,} rows"):
            loading._require_unresized(holder, of(wrong_rows))


def test_a_tokenizer_is_remembered_when_adapters_change() -> None:
    peft = pytest.importorskip("peft", reason=NO_ADAPTERS)
    adapted = peft.get_peft_model(in_memory("llama"), lora(peft))
    adapted.add_adapter("other", lora(peft))
    tokenizer = family_tokenizer("llama")
    merged = [probe.load(adapted, tokenizer=tokenizer).origin.read]
    adapted.set_adapter("other")
    merged.append(probe.load(adapted).origin.read)
    with adapted.disable_adapter():
        merged.append(probe.load(adapted).origin.read)
    whole = "LlamaForCausalLM"
    with_adapters = [f"{whole}, adapters merged: {name}" for name in ("default", "other")]
    assert merged == [*with_adapters, whole]
    assert probe.load(adapted).tokenizer is tokenizer


def test_an_object_is_forgotten_with_its_owner() -> None:
    from probe.model.load import _LOADED

    source = in_memory("llama")
    probe.load(source, tokenizer=family_tokenizer("llama"))
    assert source in _LOADED
    count = len(_LOADED)
    del source
    import gc

    gc.collect()
    assert len(_LOADED) < count


# --- bridges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", each_family(also=("marian",)))
def test_a_bridge_gives_the_same_model_as_its_folder(kind: str) -> None:
    model = family_model(kind, torch.float64)
    bridged = probe.load(model.bridge)
    assert bridged.config == model.config
    assert (bridged.origin.kind, bridged.origin.location) == ("in memory", model.name)
    assert bridged.origin.sha256 != model.origin.sha256
    assert set(bridged.weights) == set(model.weights)
    assert all(torch.equal(bridged.weights[name], tensor) for name, tensor in model.weights.items())
    assert probe.load(model.bridge) is bridged


def boot(folder: Path, **options: Any) -> TransformerBridge:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return TransformerBridge.boot_transformers(
        str(folder), device="cpu", tokenizer=tokenizer, **options
    )


@pytest.mark.parametrize("kind", mostly_campaign(["gpt2", "qwen2", "llama"], here=2))
def test_a_bridge_reads_the_tokens_of_its_folder_and_of_its_hugging_face_model(
    kind: str, tmp_path: Path
) -> None:
    """TransformerLens makes the tokenizer that it reads itself prepend a BOS, and no other."""
    folder = make_family(tmp_path / kind, kind)
    if kind == "qwen2":  # it has a BOS token but does not add it
        tokenizer = family_tokenizer(kind)
        tokenizer.bos_token = "<pad>"
        tokenizer.save_pretrained(folder)
    from_file = probe.load(folder)
    model_class = getattr(transformers, from_file.config.family.architectures[0])
    expected = probe.tokenize(from_file, TEXT)
    assert probe.tokenize(model_class.from_pretrained(folder), TEXT) == expected
    assert (expected.ids[0] == 0) is (kind == "gpt2")
    for bridge in (
        TransformerBridge.boot_transformers(str(folder), device="cpu"),
        boot(folder),
        from_file.bridge,
    ):
        before = bridge.tokenizer, bridge.tokenizer(TEXT)["input_ids"]
        assert probe.tokenize(bridge, TEXT) == expected
        assert (bridge.tokenizer, bridge.tokenizer(TEXT)["input_ids"]) == before


def test_a_bridge_whose_tokenizer_was_changed_and_cannot_be_read_again_is_refused(
    tmp_path: Path,
) -> None:
    folder = make_family(tmp_path / "llama", "llama")
    bridge = TransformerBridge.boot_transformers(str(folder), device="cpu")
    folder.rename(tmp_path / "elsewhere")
    assert refusal(bridge) == (
        "Cannot load the bridge: TransformerLens made its tokenizer put a BOS in front, and the "
        "tokenizer's own rules cannot be read from llama, where it came from. Pass tokenizer=, as "
        "AutoTokenizer.from_pretrained(...) gives it."
    )
    loaded = probe.load(bridge, tokenizer=family_tokenizer("llama"))
    assert probe.tokenize(loaded, TEXT) == probe.tokenize(tmp_path / "elsewhere", TEXT)


@pytest.mark.parametrize("kind", mostly_campaign(["gpt2", "llama", "bert"], here=2))
def test_the_untouched_weights_of_a_bridge_in_compatibility_mode_are_read(
    kind: str, tmp_path: Path
) -> None:
    folder = make_family(tmp_path / kind, kind)
    raw = probe.load(folder)
    bridge = boot(folder, dtype=torch.float32)
    bridge.enable_compatibility_mode(disable_warnings=True)
    before = {name: tensor.clone() for name, tensor in bridge.state_dict().items()}
    model = probe.load(bridge)
    assert all(torch.equal(model.weights[name], tensor) for name, tensor in raw.weights.items())
    assert probe.certify(model).require().ok
    assert model.origin.read == (
        "asked for by a TransformerBridge in compatibility mode: its weights before folding"
    )
    assert model.origin.sha256 == raw.origin.sha256
    after = bridge.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    unprocessed = boot(folder, dtype=torch.float32)
    unprocessed.enable_compatibility_mode(disable_warnings=True, no_processing=True)
    assert probe.load(unprocessed).origin.read.endswith("in a TransformerBridge")
    assert probe.certify(unprocessed).require().ok


def test_a_folded_bridge_without_untouched_weights_is_refused(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "llama", "llama")
    bridge = boot(folder, hf_model=in_memory("llama"))
    bridge.enable_compatibility_mode(disable_warnings=True)
    folds = "Cannot load the bridge: it is in compatibility mode, which folds its weights, and"
    message = refusal(bridge)
    assert message.startswith(
        f"{folds} llama, where it says that it came from, is another model (log"
    )
    assert message.endswith(". Give it without enable_compatibility_mode().")
    bridge.cfg.model_name = str(tmp_path / "nowhere")
    assert refusal(bridge) == (
        f"{folds} the untouched ones cannot be read from nowhere, where it came from. "
        "Give it without enable_compatibility_mode()."
    )


def test_a_bridge_in_training_mode_is_measured_in_evaluation(tmp_path: Path) -> None:
    bridge = boot(make_checkpoint(tmp_path / "small"))
    bridge.train()
    assert probe.certify(bridge).require().ok
    assert all(module.training for module in bridge.modules())


# --- adapters -------------------------------------------------------------------------------------


def lora(peft: Any) -> Any:
    names = ["q_proj", "v_proj", "down_proj", "embed_tokens"]
    return peft.LoraConfig(r=4, target_modules=names, init_lora_weights=False)


def dora(peft: Any) -> Any:
    names = ["q_proj", "o_proj"]
    return peft.LoraConfig(r=4, use_dora=True, target_modules=names, init_lora_weights=False)


def ia3(peft: Any) -> Any:
    names = ["k_proj", "down_proj"]
    return peft.IA3Config(
        target_modules=names, feedforward_modules=["down_proj"], init_ia3_weights=False
    )


def saved(peft: Any) -> Any:
    return peft.LoraConfig(
        r=4, target_modules=["k_proj"], modules_to_save=["lm_head"], init_lora_weights=False
    )


@pytest.mark.parametrize("kind", [lora, dora, ia3, saved])
def test_adapters_are_merged_in_a_copy_of_the_weights_that_they_change(
    kind: Callable[[Any], Any],
) -> None:
    peft = pytest.importorskip("peft", reason=NO_ADAPTERS)
    plain = in_memory("llama")
    untouched = copy.deepcopy(plain)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        adapted = peft.get_peft_model(plain, kind(peft)).eval()
        if kind is saved:
            nn.init.normal_(adapted.base_model.model.lm_head.modules_to_save["default"].weight)
    before = fingerprint(adapted)
    model = probe.load(adapted, tokenizer=family_tokenizer("llama"))
    assert probe.certify(model).require().ok
    assert fingerprint(adapted) == before
    assert model.origin.read == "LlamaForCausalLM, adapters merged: default"
    assert "LlamaForCausalLM + adapter default: " in repr(model)
    assert probe.patch(model, "a b", against="c d", at=-1).attrs["model"] == model.name
    with torch.no_grad():
        expected = adapted(ids).logits
        torch.testing.assert_close(model.bridge(ids), expected, rtol=0, atol=2e-5)
        assert (expected - untouched(ids).logits).abs().max() > 0.01
    copied = {
        n for n, t in model.weights.items() if not storages([t]) <= storages(plain.parameters())
    }
    names = {
        "lora": {"q_proj", "v_proj", "down_proj", "embed_tokens"},
        "dora": {"q_proj", "o_proj"},
    }
    names |= {"ia3": {"k_proj", "down_proj"}, "saved": {"k_proj"}}
    assert {name.split(".")[-2] for name in copied} == names[kind.__name__]
    with adapted.disable_adapter():
        off = probe.load(adapted, tokenizer=family_tokenizer("llama"))
        assert off.origin.read == "LlamaForCausalLM"
        assert torch.equal(
            off.bridge(ids), probe.load(untouched, tokenizer=off.tokenizer).bridge(ids)
        )


def test_a_bridge_around_an_adapter_and_one_added_by_transformers(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason=NO_ADAPTERS)
    folder = make_family(tmp_path / "llama", "llama")
    source = transformers.LlamaForCausalLM.from_pretrained(folder)
    source.add_adapter(
        peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    )
    model = probe.load(source)
    assert probe.certify(model).require().ok
    bridged = probe.load(boot(folder, hf_model=source))
    assert bridged.origin.sha256 == model.origin.sha256
    assert (
        bridged.origin.read == "LlamaForCausalLM in a TransformerBridge, adapters merged: default"
    )


def test_a_folder_of_an_adapter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert refusal(tmp_path) == (
        f"Cannot load {tmp_path}: it is an adapter, as of LoRA (adapter_config.json), and no model. "
        "Load the model that it adapts, then give PeftModel.from_pretrained(model, folder)."
    )


def test_learned_prompts_are_refused() -> None:
    peft = pytest.importorskip("peft", reason=NO_ADAPTERS)
    sizes = {"num_attention_heads": 4, "num_layers": 2, "token_dim": 32, "num_virtual_tokens": 3}
    prompted = peft.get_peft_model(
        in_memory("llama"), peft.PromptTuningConfig(task_type="CAUSAL_LM", **sizes)
    )
    assert refusal(prompted) == (
        "Cannot load the PeftModelForCausalLM: its adapter puts learned vectors in front of every "
        "text, which no weight holds. Give the model without it, or one with a LoRA adapter."
    )


class FailingLayer(torch.nn.Linear):
    """A layer as PEFT wraps it, with an adapter that cannot be merged."""

    disable_adapters = False
    active_adapters = ("mine",)
    merged = False

    def get_base_layer(self) -> torch.nn.Module:
        return self

    def merge(self, safe_merge: bool) -> None:
        raise NotImplementedError("aLoRA does not support safe merging.")


def test_an_adapter_that_cannot_be_merged_is_named_with_its_reason() -> None:
    source = in_memory("llama")
    source.model.layers[0].self_attn.q_proj = FailingLayer(32, 32, bias=False)
    assert refusal(source) == (
        "Cannot load a model with the adapter 'mine': PEFT cannot merge it (aLoRA does not support "
        "safe merging). Disable or delete the adapter, or give the model without it."
    )


class TrainableRows(nn.Module):
    """A layer in the form of PEFT's for `trainable_token_indices`: some rows of a table are others."""

    disable_adapters = False
    active_adapters = ("rows",)
    merged = False

    def __init__(self, table: nn.Embedding, rows: list[int]) -> None:
        super().__init__()
        self.base_layer = table
        self.rows = rows
        self.delta = nn.Parameter(torch.full((len(rows), table.embedding_dim), 0.5))

    def merged_table(self) -> torch.Tensor:
        return self.base_layer.weight.detach().index_copy(0, torch.tensor(self.rows), self.delta)

    def get_base_layer(self) -> nn.Module:
        return self.base_layer

    def merge(self, safe_merge: bool) -> None:
        self.base_layer.weight.data = self.merged_table()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(x, self.merged_table())


class RowsWrapper(nn.Module):
    """PEFT's wrapper around such a layer, which has no merge of its own."""

    def __init__(self, table: nn.Embedding, rows: list[int], name: str = "token_adapter") -> None:
        super().__init__()
        self.original_module = table
        self.add_module(name, TrainableRows(table, rows))
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._modules[self.name](x)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_rows_of_an_embedding_that_an_adapter_trains_are_merged(kind: str) -> None:
    source = in_memory(kind, tie_word_embeddings=False)
    table = source.get_input_embeddings()
    before = table.weight.detach().clone()
    source.set_input_embeddings(RowsWrapper(table, [5, 7]))
    model = probe.load(source, tokenizer=family_tokenizer(kind))
    embedding = model.weights[f"{FAMILIES[kind].embed}.weight"]
    assert (embedding[[5, 7]] == 0.5).all() and torch.equal(embedding[8:], before[8:])
    assert torch.equal(table.weight, before), "the object stays as it is"
    assert model.origin.read.endswith("adapters merged: rows")
    with torch.no_grad():
        torch.testing.assert_close(model.bridge(ids), source(ids).logits, rtol=0, atol=2e-5)


def test_trained_rows_of_peft_are_merged_next_to_lora() -> None:
    peft = pytest.importorskip("peft", reason=NO_ADAPTERS)
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj"], trainable_token_indices=[5, 7], init_lora_weights=False
    )
    adapted = peft.get_peft_model(in_memory("llama"), config).eval()
    with torch.no_grad():
        for name, tensor in adapted.named_parameters():
            if "trainable_tokens_delta" in name:
                tensor.fill_(0.5)
    model = probe.load(adapted, tokenizer=family_tokenizer("llama"))
    assert (model.weights["embed_tokens.weight"][[5, 7]] == 0.5).all()
    with torch.no_grad():
        torch.testing.assert_close(model.bridge(ids), adapted(ids).logits, rtol=0, atol=2e-5)


def test_an_unknown_wrapper_of_an_adapter_is_refused_with_what_to_do() -> None:
    source = in_memory("llama")
    source.set_input_embeddings(RowsWrapper(source.get_input_embeddings(), [5], name="other"))
    assert refusal(source, tokenizer=family_tokenizer("llama")) == (
        "Cannot load a model with an adapter: PEFT puts a RowsWrapper around one of its parts, "
        "which is not merged here. Give what PEFT's merge_and_unload() returns, or the model "
        "without the adapter."
    )


# --- wrappers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", objects.WRAPPED_IN)
def test_a_wrapper_is_unwrapped_by_attribute(name: str) -> None:
    source = in_memory("llama")
    wrapper = SimpleNamespace(**{name: source}, tokenizer=family_tokenizer("llama"))
    outer = SimpleNamespace(model=wrapper)
    assert probe.load(outer).bridge is probe.load(source).bridge
    assert probe.trace(outer, "The muddy bank").model_name == "LlamaForCausalLM"


def test_a_pipeline_a_parallel_and_a_compiled_model_are_unwrapped() -> None:
    source = in_memory("llama")
    tokenizer = family_tokenizer("llama")
    pipeline = transformers.pipeline("text-generation", model=source, tokenizer=tokenizer)
    model = probe.load(pipeline)
    assert model is probe.load(nn.DataParallel(source)) is probe.load(torch.compile(source))


def test_an_nnsight_model_is_unwrapped() -> None:
    nnsight = pytest.importorskip("nnsight", reason=NO_NNSIGHT)
    source = in_memory("llama")
    wrapped = nnsight.NNsight(source)
    model = probe.load(wrapped, tokenizer=family_tokenizer("llama"))
    assert probe.certify(model).require().ok
    with wrapped.trace(ids):
        hidden = wrapped.model.norm.output.save()
    assert hidden.shape == (1, 4, 32), "the wrapper works as before"
    assert probe.load(wrapped) is model


# --- refusals -------------------------------------------------------------------------------------


def without_numbers() -> PreTrainedModel:
    architecture = model_class("llama")
    with torch.device("meta"):
        return architecture(architecture.config_class(**FAMILIES["llama"].tiny_config))


def in_eight_bits() -> PreTrainedModel:
    model = in_memory("llama")
    weight = torch.zeros(24, 32, dtype=torch.int8)
    model.model.layers[0].self_attn.q_proj.weight = nn.Parameter(weight, requires_grad=False)
    return model


def not_a_number() -> PreTrainedModel:
    model = in_memory("llama")
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    return model


def unable_to_run() -> PreTrainedModel:
    model = in_memory("llama")
    model.model.layers[1].to(torch.bfloat16)
    return model


def with_a_hook() -> PreTrainedModel:
    model = in_memory("llama")
    model.model.layers[1].register_forward_hook(lambda module, arguments, output: None)
    return model


def changed_forward() -> PreTrainedModel:
    model = in_memory("llama")
    layer = model.model.layers[1]
    forward = layer.mlp.forward
    layer.mlp.forward = lambda x: 0.5 * forward(x)
    return model


def in_float8() -> PreTrainedModel:
    model = in_memory("llama")
    model.model.norm.to(torch.float8_e4m3fn)
    return model


class Packed(torch.Tensor):
    """A tensor whose numbers only its library can read."""


def in_a_tensor_subclass() -> PreTrainedModel:
    model = in_memory("llama")
    weight = model.model.norm.weight.detach()
    model.model.norm.weight = torch.nn.Parameter(torch.Tensor._make_subclass(Packed, weight))
    return model


def in_two_types() -> PreTrainedModel:
    model = in_memory("llama")
    model.model.norm.half()
    return model


COPIED = "Pass dtype=torch.float32, for which they are copied."
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a class": (
        lambda: transformers.LlamaForCausalLM,
        (
            "the class LlamaForCausalLM: a class holds no weights. Give an object of it, as "
            "LlamaForCausalLM.from_pretrained(...) returns."
        ),
    ),
    "meta": (
        without_numbers,
        (
            "the LlamaForCausalLM: model.embed_tokens.weight is on the meta device and holds no "
            "numbers. Load it again with from_pretrained, without device_map (with nnsight, as "
            "LanguageModel(..., dispatch=True))."
        ),
    ),
    "8 bits": (
        in_eight_bits,
        (
            "the LlamaForCausalLM: model.layers.0.self_attn.q_proj.weight is quantized (torch.int8, 8 "
            "bits an element). Load it again without quantization_config."
        ),
    ),
    "float8": (
        in_float8,
        (
            "the LlamaForCausalLM: model.norm.weight is quantized (torch.float8_e4m3fn, 8 bits an "
            "element). Load it again without quantization_config."
        ),
    ),
    "a class of tensors": (
        in_a_tensor_subclass,
        (
            "the LlamaForCausalLM: model.norm.weight is a Packed, which only its library can read. "
            "Load it again without quantisation."
        ),
    ),
    "NaN": (
        not_a_number,
        "the LlamaForCausalLM: norm.weight contains NaN. Take an undamaged copy of the weights.",
    ),
    "a hook": (
        with_a_hook,
        (
            "the LlamaForCausalLM: it carries hooks (model.layers.1), which would change what is "
            "measured. Call remove() on the handle that register_forward_hook gave, or put the change "
            "into the weights."
        ),
    ),
    "half": (
        lambda: in_memory("llama").half(),
        f"the LlamaForCausalLM: its weights are in torch.float16. {COPIED}",
    ),
    "two types": (
        in_two_types,
        f"the LlamaForCausalLM: its weights are in torch.float16 and torch.float32. {COPIED}",
    ),
    "another tensor": (
        lambda: in_memory("llama", mlp_bias=True),
        (
            "the LlamaForCausalLM: mlp_bias is True in its config, and the from-scratch check "
            "covers Llama with False only. Load a standard Llama."
        ),
    ),
    "no model": (lambda: nn.Linear(2, 2), "a Linear: only a name, a folder, a GGUF file, a"),
    "a dictionary": (dict, "a dict: only a name, a folder, a GGUF file, a Hugging Face model or a"),
    "another class": (
        lambda: in_memory("gpt2", architecture="GPT2ForTokenClassification"),
        (
            "the GPT2ForTokenClassification: it is a GPT2ForTokenClassification, and of model_type 'gpt2' GPT2LMHeadModel is certified. "
            "Give one of that class."
        ),
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_an_object_that_cannot_be_read_is_refused_in_a_sentence(
    make: Callable[[], Any], message: str
) -> None:
    with pytest.raises(probe.ModelError) as caught:
        probe.load(make(), tokenizer=family_tokenizer("llama"))
    sentence = str(caught.value)
    assert sentence.startswith(f"Cannot load {message}") and sentence.endswith(".")


def test_an_object_that_computes_something_else_than_its_weights_is_refused() -> None:
    with pytest.raises(probe.ModelError) as caught:
        probe.load(changed_forward(), tokenizer=family_tokenizer("llama"))
    message = (
        "Cannot load the LlamaForCausalLM: on a short text it computes something else than its"
    )
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith("Give the model as its library made it.")


def test_half_precision_is_computed_in_the_type_that_is_asked_for() -> None:
    source = in_memory("llama").half()
    model = probe.load(source, tokenizer=family_tokenizer("llama"), dtype="float32")
    assert model.dtype == torch.float32 and model.origin.stored == "float16"
    assert probe.certify(model).require().ok


def test_the_tokenizer_must_be_passed_and_must_belong_to_the_model() -> None:
    source = make_model()
    start = "Cannot load the GPT2LMHeadModel: "
    assert refusal(source) == (
        f"{start}its tokenizer is unknown. Pass tokenizer=, as "
        "AutoTokenizer.from_pretrained(...) gives it."
    )
    refusal_with = partial(refusal, source)
    small = "Pass the tokenizer that belongs to these weights."
    assert refusal_with(tokenizer=make_tokenizer(300)) == (
        f"{start}the tokenizer knows 300 tokens and it embeds 400. {small}"
    )
    large = "its tokenizer has a token 381 and the model embeds only 300 tokens. Use the tokenizer"
    message = refusal(make_model(vocab_size=300), tokenizer=make_tokenizer())
    assert message == f"{start}{large} that belongs to these weights."
    assert "its tokenizer (function) is not a fast one of transformers and" in refusal_with(
        tokenizer=lambda text: text
    )
    assert refusal_with(tokenizer="gpt2") == (
        f"{start}tokenizer='gpt2' is a name. Pass what AutoTokenizer.from_pretrained('gpt2') returns."
    )
    with pytest.raises(probe.InputError) as caught:
        probe.load("tiny-senses", tokenizer=make_tokenizer())
    assert str(caught.value) == (
        "Cannot load tiny-senses with tokenizer=: a name, a folder and a file have a tokenizer. "
        "Omit it."
    )


def test_a_hook_of_the_user_on_a_bridge_is_refused_and_hooks_of_the_bridge_are_not(
    tmp_path: Path,
) -> None:
    bridge: TransformerBridge = boot(make_family(tmp_path / "bert", "bert"))
    bridge.add_hook("blocks.0.attn.hook_z", lambda z, hook: z)
    assert refusal(bridge) == (
        "Cannot load the bridge: it carries hooks (blocks.0.attn.o.hook_in), which would change what "
        "is measured. Call bridge.reset_hooks(including_permanent=True), or put the change into the "
        "weights."
    )
    bridge.reset_hooks(including_permanent=True)
    assert probe.load(bridge).origin.kind == "in memory"
    bridge.hook_dict["blocks.0.mlp.in.hook_in"].add_hook(
        lambda tensor, hook: tensor, is_permanent=True
    )
    assert "it carries hooks (blocks.0.mlp.in.hook_in)" in refusal(bridge)
    bridge.reset_hooks(including_permanent=True)
    assert probe.load(bridge).origin.kind == "in memory"


def test_hooks_added_to_the_bridge_of_a_model_are_refused_by_every_function() -> None:
    model = probe.load("tiny-senses")
    before = probe.trace(model, "The river bank").logits
    point = "blocks.1.hook_resid_pre"
    message = (
        "Cannot load the bridge of tiny-senses: it carries hooks ({}), which would change what is "
        "measured. Call {}, or put the change into the weights."
    )

    def refused(by: str, step: str) -> None:
        for ask in (
            lambda: probe.load(model),
            lambda: probe.trace(model, "The river bank"),
            lambda: probe.patch(model, "The river bank", against="The money bank", at="bank"),
        ):
            with pytest.raises(probe.ModelError) as caught:
                ask()
            assert str(caught.value) == message.format(by, step)

    with model.bridge.hooks(fwd_hooks=[(point, lambda resid, hook: 2 * resid)]):
        refused("blocks.1.hook_in", "bridge.reset_hooks(including_permanent=True)")
        assert not probe.certify(model).ok
    handle = model.bridge.original_model.register_forward_hook(lambda *arguments: None)
    refused("the whole model", "remove() on the handle that register_forward_hook gave")
    handle.remove()
    assert torch.equal(probe.trace(model, "The river bank").logits, before)
    model.bridge.enable_compatibility_mode()
    with pytest.raises(probe.ModelError) as caught:
        probe.trace(model, "The river bank")
    assert str(caught.value) == (
        "Cannot load the bridge of tiny-senses: it was put into compatibility mode, which folds and "
        "centres the weights. Load the model again from what it was loaded from."
    )


def test_an_object_whose_bridge_was_folded_is_read_again() -> None:
    source = in_memory("gpt2")
    model = probe.load(source, tokenizer=family_tokenizer("gpt2"))
    logits = probe.trace(model, "The river bank").logits
    model.bridge.enable_compatibility_mode()
    assert torch.equal(probe.trace(source, "The river bank").logits, logits)


def test_an_object_of_two_types_that_cannot_run_is_refused() -> None:
    with pytest.raises(probe.ModelError) as caught:
        probe.load(unable_to_run(), tokenizer=family_tokenizer("llama"), dtype="float32")
    assert str(caught.value).startswith(
        "Cannot load the LlamaForCausalLM: it does not run on a short text ("
    )
    assert str(caught.value).endswith(
        "). Give one that runs, with all weights of one type, as model.float() makes them."
    )


def test_a_bridge_with_a_nan_or_without_tokenizer_is_refused(tmp_path: Path) -> None:
    bridge = boot(make_checkpoint(tmp_path / "small"))
    bridge.cfg.model_name = "nowhere"
    bridge._tokenizer = None
    assert "it has no tokenizer. Boot it again with tokenizer=..." in refusal(bridge)
    with torch.no_grad():
        bridge.blocks[1].mlp.out.bias[0] = float("nan")
    assert "h.1.mlp.c_proj.bias contains NaN" in refusal(bridge)


def test_a_study_of_an_object_names_it(tmp_path: Path, run: Any) -> None:
    """The name passes from the object to the manifest of a page."""
    folder = make_checkpoint(tmp_path / "small")
    source = transformers.GPT2LMHeadModel.from_pretrained(folder)
    walked = probe.walk(source, "The muddy bank", at="bank")
    page = probe.write(walked, tmp_path / "out")
    manifest = json.loads((Path(page).parent / "manifest.json").read_text())
    assert manifest["origin"]["kind"] == "in memory"
    assert manifest["weights_read_from"] == "GPT2LMHeadModel"
