"""Models in memory: accepted and shared ones, objects that stay unchanged, and refused ones with
their messages."""

import copy
import gc
import hashlib
import weakref
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from checkpoints import make_checkpoint, make_model, make_tokenizer
from families import (
    FAMILIES,
    REPRESENTATIVES,
    family_model,
    family_tokenizer,
    make_family,
    model_class,
    random_model,
)
from inside import manifest, objects, untrained
from seeds import mostly_campaign
from test_load import refusal
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoTokenizer, PreTrainedModel

import probe

NO_ADAPTERS = "PEFT is not installed; pip install peft, which no number of probe depends on"
NO_NNSIGHT = "nnsight is not installed; pip install nnsight, which no number of probe depends on"
TEXT = "The river bank"
ids = torch.tensor([[5, 6, 7, 30]])
LLAMA = family_tokenizer("llama")


def in_memory(kind: str = "llama", *, architecture: str = "", **changes: object) -> PreTrainedModel:
    """A random Hugging Face model of the family, without a file."""
    return random_model(kind, seed=3, architecture=architecture, **changes)


def loaded(source: Any, **options: Any) -> probe.Model:
    """A Llama from memory."""
    return probe.load(source, tokenizer=LLAMA, **options)


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


# The last three are stored differently in an object and in a file: head by head, another name for
# the unembedding, experts in one tensor.
@pytest.mark.parametrize("kind", (*REPRESENTATIVES, "gpt_neox", "mixtral", "bart"))
def test_a_hugging_face_model_is_certified_shares_its_weights_and_stays_as_it_is(kind: str) -> None:
    source = in_memory(kind)
    source.train()  # loading must not change its mode
    before, state = fingerprint(source), torch.get_rng_state()
    model = probe.load(source, tokenizer=family_tokenizer(kind))
    assert probe.certify(model).require().ok
    untrained(model, seed=0)
    assert fingerprint(source) == before and torch.equal(state, torch.get_rng_state())
    memory = storages(source.state_dict().values())
    optional = model.config.family.optional_weights
    shared = [tensor for name, tensor in model.weights.items() if name not in optional]
    assert storages(shared) <= memory
    mine = (*model.bridge.parameters(), *model.weights.values())
    extra = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in mine}
    beyond = sum(size for key, size in extra.items() if key not in memory)
    assert beyond <= 0.05 * sum(tensor.nbytes for tensor in source.parameters())
    assert (model.name, model.origin.kind) == (type(source).__name__, "in memory")
    assert model.origin.read == type(source).__name__ and len(model.origin.sha256) == 64
    assert probe.load(source) is model, "an object is loaded once"


def test_an_object_and_a_file_of_the_same_numbers_give_the_same(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "llama", "llama")
    model = probe.load(transformers.LlamaForCausalLM.from_pretrained(folder))
    from_file = probe.load(folder)
    assert model.config == from_file.config and model.name == "llama"
    assert all(torch.equal(model.weights[name], t) for name, t in from_file.weights.items())
    assert torch.equal(model.bridge(ids), from_file.bridge(ids))
    written = manifest("m", model.origin, seed=0, command="", data_sha256="")
    origin = {"kind": "in memory", "location": "llama", "file": "", "revision": None}
    assert written["origin"] == origin and written["weights_read_from"] == "LlamaForCausalLM"
    assert written["weights_sha256"] == model.origin.sha256 != from_file.origin.sha256


def test_half_precision_is_computed_in_the_type_that_is_asked_for() -> None:
    model = loaded(in_memory().half(), dtype="float32")
    assert model.dtype == torch.float32 and model.origin.stored == "float16"
    assert probe.certify(model).require().ok
    double = in_memory().double()
    assert loaded(double).dtype == torch.float64
    assert loaded(double, dtype="float32").origin.stored == "float64"


# A setting of torch, the value that rounds factors, and the usual one.
ROUNDED_PRODUCTS = [
    ("set_float32_matmul_precision", "medium", "highest"),
    ("set_float32_matmul_precision", "high", "highest"),
    ("backends.mkldnn.matmul.fp32_precision", "bf16", "ieee"),
    ("backends.mkldnn.conv.fp32_precision", "tf32", "none"),
    ("backends.cuda.matmul.allow_tf32", True, False),
    ("backends.fp32_precision", "tf32", "none"),
]


@pytest.mark.parametrize(("name", "rounded", "plain"), ROUNDED_PRODUCTS)
def test_products_of_rounded_factors_are_refused(name: str, rounded: Any, plain: Any) -> None:
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
        refused(lambda: probe.trace(model, TEXT), "Cannot run a model while torch may round ")
    finally:
        set_to(plain)
    assert len(probe.trace(model, TEXT).tokens) > 1


def refused(ask: Callable[[], object], start: str) -> None:
    with pytest.raises(probe.InputError) as caught:
        ask()
    assert str(caught.value).startswith(start)


def test_a_process_that_computes_differently_is_refused() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ask = "Cannot run a model under torch.autocast: parts of it would be computed in another"
        refused(lambda: probe.trace(family_model("llama"), TEXT), ask)
    source = in_memory()
    handle = register_module_forward_hook(lambda module, args, output: None)
    try:
        start = "Cannot run a model with a hook on every module of the process (torch.nn.modules."
        refused(lambda: loaded(source), start)
    finally:
        handle.remove()
    loaded(source)
    refused(lambda: loaded(source, device="meta"), "Cannot use the device 'meta': PyTorch cannot")


# --- objects that change --------------------------------------------------------------------------


def test_a_change_of_the_object_is_detected_and_its_tokenizer_is_remembered() -> None:
    source, tokenizer = in_memory(), family_tokenizer("llama")
    first = probe.load(source, tokenizer=tokenizer)
    with torch.no_grad():
        source.model.norm.weight.mul_(2)
    second = probe.load(source)
    assert second is not first and second.origin.sha256 != first.origin.sha256
    assert second.tokenizer is tokenizer
    assert probe.load(source, prepend_bos=False) is not second
    assert probe.load(source, dtype="float64").tokenizer is tokenizer
    replacement = family_tokenizer("llama")
    assert probe.load(source, tokenizer=replacement).tokenizer is replacement


CHANGES: dict[str, Callable[[Any], object]] = {
    "a forward": lambda it: setattr(it.model.layers[1].mlp, "forward", lambda x: 0 * x),
    "a scale": lambda it: setattr(it.model.layers[0].self_attn, "scaling", 0.05),
    "an activation": lambda it: setattr(it.model.layers[1].mlp, "act_fn", nn.ReLU()),
    "a head": lambda it: setattr(it, "lm_head", nn.Sequential(it.lm_head, nn.Tanh())),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_computation_is_detected_before_and_after_loading(change: str) -> None:
    source = in_memory()
    assert loaded(source) is probe.load(source)
    CHANGES[change](source)
    for changed in (source, copy.deepcopy(source)):
        sentence = refusal(changed, tokenizer=LLAMA)
        assert sentence.startswith("Cannot load the LlamaForCausalLM: ")


def test_an_object_is_forgotten_with_its_owner() -> None:
    source = in_memory()
    model = weakref.ref(loaded(source))
    assert model() is not None
    del source
    gc.collect()
    assert model() is None


def resized(folder: Path, rows: int, kind: str = "llama") -> PreTrainedModel:
    """The model of a folder with another number of rows in its embedding, as after tokens were
    added."""
    source = model_class(kind).from_pretrained(folder)
    source.resize_token_embeddings(rows)
    return source


def test_a_resized_embedding_asks_for_its_tokenizer(tmp_path: Path) -> None:
    folder, tokens = make_family(tmp_path / "llama", "llama"), len(LLAMA)
    for rows in (400, 416, 448, 512):  # as its config states, or padded
        assert probe.load(resized(folder, rows)).config.d_vocab == rows
    unexplained = (
        f"its embedding has 403 rows and its tokenizer {tokens} tokens, which padding does not "
        "explain; it may have been resized for another tokenizer. Pass tokenizer=, as "
        "AutoTokenizer.from_pretrained(...) gives it."
    )
    source = resized(folder, 403)
    assert refusal(source) == f"Cannot load the LlamaForCausalLM: {unexplained}"
    # TransformerLens reads the old tokenizer from the model's source.
    bridge = TransformerBridge.boot_transformers(str(folder), hf_model=source)
    assert refusal(bridge) == f"Cannot load the bridge: {unexplained}"
    extended = family_tokenizer("llama")
    extended.add_tokens([f"<extra {number}>" for number in range(403 - tokens)])
    model = probe.load(source, tokenizer=extended)
    assert model.config.d_vocab == 403 and probe.load(source) is model
    assert probe.tokenize(model, "the <extra 3> bank").ids.count(tokens + 3) == 1


def test_a_tokenizer_given_before_is_not_used_for_an_embedding_resized_since() -> None:
    source = in_memory()
    loaded(source)
    source.resize_token_embeddings(403)
    assert "its embedding has 403 rows" in refusal(source)
    with torch.no_grad():
        source.lm_head.weight.mul_(1.5)  # a training step does not change this
    assert "its embedding has 403 rows" in refusal(source)
    model = loaded(source)
    with torch.no_grad():
        source.lm_head.weight.mul_(1.5)
    assert probe.load(source).tokenizer is model.tokenizer


def test_a_change_of_a_setting_gives_the_numbers_that_follow_from_it() -> None:
    source = in_memory()
    first = loaded(source)
    source.config.rms_norm_eps = 0.5
    for module in source.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 0.5
    second = probe.load(source)
    record = probe.trace(second, TEXT)
    with torch.no_grad():
        expected = source(torch.tensor([record.tokens.ids])).logits[0]
    assert second is not first
    torch.testing.assert_close(record.logits, expected, rtol=0, atol=1e-5)


def test_a_coarse_type_does_not_change_the_routing_of_experts() -> None:
    tokenizer = family_tokenizer("mixtral")
    coarse = in_memory("mixtral").to(torch.bfloat16)
    message = refusal(coarse, tokenizer=tokenizer)  # its positions are rounded, too
    assert message.endswith('or pass dtype="float32".')
    coarse.model.rotary_emb = in_memory("mixtral").model.rotary_emb  # as from_pretrained has them
    assert probe.certify(probe.load(coarse, tokenizer=tokenizer)).require().ok
    exact = in_memory("mixtral").double()  # in which transformers runs no experts together
    assert probe.load(exact, tokenizer=tokenizer).dtype == torch.float64


# --- bridges --------------------------------------------------------------------------------------


def boot(folder: Path, **options: Any) -> TransformerBridge:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return TransformerBridge.boot_transformers(
        str(folder), device="cpu", tokenizer=tokenizer, **options
    )


@pytest.mark.parametrize("kind", mostly_campaign(["gpt2", "qwen2", "llama"], here=2))
def test_a_bridge_reads_the_tokens_of_its_folder(kind: str, tmp_path: Path) -> None:
    """TransformerLens makes the tokenizer that it reads itself prepend a BOS, and no other."""
    folder = make_family(tmp_path / kind, kind)
    if kind == "qwen2":  # it has a BOS token but does not add it
        tokenizer = family_tokenizer(kind)
        tokenizer.bos_token = "<pad>"
        tokenizer.save_pretrained(folder)
    from_file = probe.load(folder)
    expected = probe.tokenize(from_file, TEXT)
    assert probe.tokenize(model_class(kind).from_pretrained(folder), TEXT) == expected
    assert (expected.ids[0] == 0) is (kind == "gpt2")
    own = TransformerBridge.boot_transformers(str(folder), device="cpu")
    for bridge in (own, boot(folder), from_file.bridge):
        before = bridge.tokenizer, bridge.tokenizer(TEXT)["input_ids"]
        assert probe.tokenize(bridge, TEXT) == expected
        assert (bridge.tokenizer, bridge.tokenizer(TEXT)["input_ids"]) == before


def test_a_bridge_whose_tokenizer_was_changed_and_cannot_be_read_again_is_refused(tmp_path) -> None:
    folder = make_family(tmp_path / "llama", "llama")
    bridge = TransformerBridge.boot_transformers(str(folder), device="cpu")
    folder.rename(tmp_path / "elsewhere")
    message = refusal(bridge)
    assert "TransformerLens made its tokenizer put a BOS in front, and the tokenizer's" in message
    assert "own rules cannot be read from llama, where it came from. Pass tokenizer=" in message
    assert loaded(bridge).tokenizer is LLAMA


def test_the_untouched_weights_of_a_bridge_in_compatibility_mode_are_read(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "llama", "llama")
    raw, bridge = probe.load(folder), boot(folder, dtype=torch.float32)
    bridge.enable_compatibility_mode(disable_warnings=True)
    before = {name: tensor.clone() for name, tensor in bridge.state_dict().items()}
    model = probe.load(bridge)
    assert all(torch.equal(model.weights[name], tensor) for name, tensor in raw.weights.items())
    assert model.origin.sha256 == raw.origin.sha256
    how = "asked for by a TransformerBridge in compatibility mode: its weights before folding"
    assert model.origin.read == how
    after = bridge.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    unprocessed = boot(folder, dtype=torch.float32)
    unprocessed.enable_compatibility_mode(disable_warnings=True, no_processing=True)
    assert probe.load(unprocessed).origin.read.endswith("in a TransformerBridge")
    assert probe.certify(unprocessed).require().ok


def test_a_folded_bridge_without_untouched_weights_is_refused(tmp_path: Path) -> None:
    bridge = boot(make_family(tmp_path / "llama", "llama"), hf_model=in_memory())
    bridge.enable_compatibility_mode(disable_warnings=True)
    folds = "Cannot load the bridge: it is in compatibility mode, which folds its weights, and"
    step = ". Give it without enable_compatibility_mode()."
    message = refusal(bridge)
    assert message.startswith(f"{folds} llama, where it says that it came from, is another model")
    assert message.endswith(step)
    bridge.cfg.model_name = str(tmp_path / "nowhere")
    nowhere = "the untouched ones cannot be read from nowhere, where it came from"
    assert refusal(bridge) == f"{folds} {nowhere}{step}"


def test_what_a_user_did_to_a_bridge_is_refused_unless_it_changes_no_number(tmp_path: Path) -> None:
    bridge = boot(make_checkpoint(tmp_path / "small"))
    bridge.train()
    assert probe.certify(bridge).require().ok
    assert all(module.training for module in bridge.modules())
    bridge.add_hook("blocks.0.attn.hook_z", lambda z, hook: z)
    hooked = "Cannot load the bridge: it carries hooks (blocks.0.{}), which would change what is"
    message = refusal(bridge)
    assert message.startswith(hooked.format("attn.o.hook_in"))
    assert "Call bridge.reset_hooks(including_permanent=True), or put the change into" in message
    bridge.reset_hooks(including_permanent=True)
    assert probe.load(bridge).origin.kind == "in memory"
    point = bridge.hook_dict["blocks.0.mlp.in.hook_in"]
    point.add_hook(lambda tensor, hook: tensor, is_permanent=True)
    assert refusal(bridge).startswith(hooked.format("mlp.in.hook_in"))
    bridge.reset_hooks(including_permanent=True)
    bridge.cfg.model_name = "nowhere"
    bridge._tokenizer = None
    with torch.no_grad():
        bridge.blocks[1].mlp.out.bias[0] = 0.5
    assert "it has no tokenizer. Boot it again with tokenizer=..." in refusal(bridge)
    with torch.no_grad():
        bridge.blocks[1].mlp.out.bias[0] = torch.nan
    assert "h.1.mlp.c_proj.bias contains NaN" in refusal(bridge)


def test_hooks_added_to_the_bridge_of_a_model_are_refused_by_every_function() -> None:
    source = in_memory("gpt2")
    model = probe.load(source, tokenizer=family_tokenizer("gpt2"))
    before = probe.trace(model, TEXT).logits
    start = "Cannot load the bridge of GPT2LMHeadModel: it "

    def refused(message: str) -> None:
        for ask in (
            lambda: probe.load(model),
            lambda: probe.trace(model, TEXT),
            lambda: probe.patch(model, TEXT, against="The money bank", at="bank"),
        ):
            with pytest.raises(probe.ModelError) as caught:
                ask()
            assert str(caught.value).startswith(start) and message in str(caught.value)

    with model.bridge.hooks(fwd_hooks=[("blocks.1.hook_resid_pre", lambda x, hook: 2 * x)]):
        refused("carries hooks (blocks.1.hook_in), which would change what is measured. Call br")
        assert not probe.certify(model).ok
    handle = model.bridge.original_model.register_forward_hook(lambda *arguments: None)
    refused("carries hooks (the whole model), which would change what is measured. Call remove() ")
    handle.remove()
    assert torch.equal(probe.trace(model, TEXT).logits, before)
    model.bridge.enable_compatibility_mode()
    refused("was put into compatibility mode, which folds and centres the weights. Load the model")
    assert torch.equal(probe.trace(source, TEXT).logits, before), "the object is read again"


# --- adapters and wrappers ------------------------------------------------------------------------

# By kind of adapter: how PEFT makes it, and the weights that it changes.
ADAPTERS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "LoRA": ({}, {"q_proj", "v_proj", "down_proj", "embed_tokens"}),
    "DoRA": ({"use_dora": True}, {"q_proj", "o_proj"}),
    "trained rows": ({"trainable_token_indices": [5, 7]}, {"q_proj", "embed_tokens"}),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_adapters_are_merged_in_a_copy_of_the_weights_that_they_change(kind: str) -> None:
    peft = pytest.importorskip("peft", reason=NO_ADAPTERS)
    options, changed = ADAPTERS[kind]
    names = sorted(changed - {"embed_tokens"} if kind == "trained rows" else changed)
    options = options | {"target_modules": names, "r": 4, "init_lora_weights": False}
    plain = in_memory()
    untouched = copy.deepcopy(plain)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        adapted = peft.get_peft_model(plain, peft.LoraConfig(**options)).eval()
    with torch.no_grad():
        for name, tensor in adapted.named_parameters():
            if "trainable_tokens_delta" in name:
                tensor.fill_(0.5)
    before = fingerprint(adapted)
    model = loaded(adapted)
    assert probe.certify(model).require().ok and fingerprint(adapted) == before
    assert model.origin.read == "LlamaForCausalLM, adapters merged: default"
    assert "LlamaForCausalLM + adapter default: " in repr(model)
    assert probe.patch(model, "a b", against="c d", at=-1).attrs["model"] == model.name
    with torch.no_grad():
        expected = adapted(ids).logits
        torch.testing.assert_close(model.bridge(ids), expected, rtol=0, atol=2e-5)
        assert (expected - untouched(ids).logits).abs().max() > 0.01
    memory = storages(plain.parameters())
    copied = {name for name, t in model.weights.items() if not storages([t]) <= memory}
    assert {name.split(".")[-2] for name in copied} == changed
    with adapted.disable_adapter():
        off = probe.load(adapted)
        assert off.origin.read == "LlamaForCausalLM" and off.tokenizer is LLAMA
        assert torch.equal(off.bridge(ids), loaded(untouched).bridge(ids))


def test_learned_prompts_are_refused() -> None:
    peft = pytest.importorskip("peft", reason=NO_ADAPTERS)
    sizes = {"num_attention_heads": 4, "num_layers": 2, "token_dim": 32, "num_virtual_tokens": 3}
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", **sizes)
    assert refusal(peft.get_peft_model(in_memory(), config)) == (
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
    source = in_memory()
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


def test_an_unknown_wrapper_of_an_adapter_is_refused_with_what_to_do() -> None:
    source = in_memory()
    source.set_input_embeddings(RowsWrapper(source.get_input_embeddings(), [5], name="other"))
    assert refusal(source, tokenizer=LLAMA) == (
        "Cannot load a model with an adapter: PEFT puts a RowsWrapper around one of its parts, "
        "which is not merged here. Give what PEFT's merge_and_unload() returns, or the model "
        "without the adapter."
    )


@pytest.mark.parametrize("name", objects.WRAPPED_IN)
def test_a_wrapper_is_unwrapped_by_attribute(name: str) -> None:
    source = in_memory()
    outer = SimpleNamespace(model=SimpleNamespace(**{name: source}, tokenizer=LLAMA))
    assert probe.load(outer).bridge is probe.load(source).bridge
    assert probe.trace(outer, "The muddy bank").model_name == "LlamaForCausalLM"


def test_a_pipeline_a_parallel_and_a_compiled_model_are_unwrapped() -> None:
    source = in_memory()
    pipeline = transformers.pipeline("text-generation", model=source, tokenizer=LLAMA)
    model = probe.load(pipeline)
    assert model is probe.load(nn.DataParallel(source)) is probe.load(torch.compile(source))


def test_an_nnsight_model_is_unwrapped() -> None:
    nnsight = pytest.importorskip("nnsight", reason=NO_NNSIGHT)
    wrapped = nnsight.NNsight(in_memory())
    model = loaded(wrapped)
    assert probe.certify(model).require().ok
    with wrapped.trace(ids):
        hidden = wrapped.model.norm.output.save()
    assert hidden.shape == (1, 4, 32), "the wrapper works as before"
    assert probe.load(wrapped) is model


# --- refusals -------------------------------------------------------------------------------------


def changed(change: Callable[[Any], object]) -> Callable[[], PreTrainedModel]:
    """Makes a Llama with a change."""

    def make() -> PreTrainedModel:
        model = in_memory()
        with torch.no_grad():
            change(model)
        return model

    return make


def on_meta() -> PreTrainedModel:
    architecture = model_class("llama")
    with torch.device("meta"):
        return architecture(architecture.config_class(**FAMILIES["llama"].tiny_config))


def in_inference_mode() -> PreTrainedModel:
    with torch.inference_mode():
        return in_memory()


class Packed(torch.Tensor):
    """A tensor whose numbers only its library can read."""


def norm_of(model: Any) -> nn.Module:
    return model.model.norm


def packed(model: Any) -> None:
    weight = torch.Tensor._make_subclass(Packed, norm_of(model).weight.detach())
    norm_of(model).weight = nn.Parameter(weight)


def in_eight_bits(model: Any) -> None:
    weight = torch.zeros(24, 32, dtype=torch.int8)
    model.model.layers[0].self_attn.q_proj.weight = nn.Parameter(weight, requires_grad=False)


LAST = "the LlamaForCausalLM: model.norm.weight"
TYPES = "Use model = probe.load(model, dtype=torch.float32), which copies them."
CLASS = "a class holds no weights. Give an object of it, as"
HOOKED = "it carries hooks (model.layers.1), which would change what is measured. Call remove()"
OTHER = "it is a GPT2ForTokenClassification, and of model_type 'gpt2' GPT2LMHeadModel is certified."
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a class": (lambda: transformers.LlamaForCausalLM, f"the class LlamaForCausalLM: {CLASS}"),
    "no numbers": (on_meta, "model.embed_tokens.weight is on the meta device and holds no numbers"),
    "inference": (in_inference_mode, "was made inside torch.inference_mode(), which"),
    "8 bits": (changed(in_eight_bits), "q_proj.weight is quantized (torch.int8, 8 bits an element"),
    "float8": (
        changed(lambda it: norm_of(it).to(torch.float8_e4m3fn)),
        f"{LAST} is quantized (torch.float8_e4m3fn, 8 bits an element). Load it again without quan",
    ),
    "a class of tensors": (changed(packed), f"{LAST} is a Packed, which only its library can read"),
    "NaN": (
        changed(lambda it: norm_of(it).weight.fill_(torch.nan)),
        "norm.weight contains NaN. Take an undamaged copy of the weights.",
    ),
    "a hook": (
        changed(lambda it: it.model.layers[1].register_forward_hook(lambda *arguments: None)),
        HOOKED,
    ),
    "half": (lambda: in_memory().half(), f"its weights are in torch.float16. {TYPES}"),
    "two types": (changed(lambda it: norm_of(it).half()), "in torch.float16 and torch.float32. U"),
    "another tensor": (lambda: in_memory(mlp_bias=True), "mlp_bias is True in its config, and the"),
    "no model": (lambda: nn.Linear(2, 2), "a Linear: only a name, a folder, a GGUF file, a Huggin"),
    "a dictionary": (dict, "a dict: only a name, a folder, a GGUF file, a Hugging Face model or a"),
    "another class": (lambda: in_memory("gpt2", architecture="GPT2ForTokenClassification"), OTHER),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_an_object_that_cannot_be_read_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(probe.ModelError) as caught:
        loaded(make())
    sentence = str(caught.value)
    assert sentence.startswith("Cannot load ") and sentence.endswith(".") and message in sentence


def test_an_object_that_computes_something_else_than_its_weights_or_does_not_run() -> None:
    scaled = in_memory()
    forward = scaled.model.layers[1].mlp.forward
    scaled.model.layers[1].mlp.forward = lambda x: 0.5 * forward(x)
    sentence = refusal(scaled, tokenizer=LLAMA)
    assert "on a short text it computes something else than its" in sentence
    assert sentence.endswith("Give the model as its library made it.")
    mixed = changed(lambda it: it.model.layers[1].to(torch.bfloat16))()
    sentence = refusal(mixed, tokenizer=LLAMA, dtype="float32")
    assert sentence.startswith(
        "Cannot load the LlamaForCausalLM: it does not run on a short text ("
    )
    assert sentence.endswith("with all weights of one type, as model.float() makes them.")


def test_the_tokenizer_must_be_passed_and_must_belong_to_the_model() -> None:
    source, start = make_model(), "Cannot load the GPT2LMHeadModel: "
    pass_it = "Pass tokenizer=, as AutoTokenizer.from_pretrained(...) gives it."
    belongs = "tokenizer that belongs to these weights."
    assert refusal(source) == f"{start}its tokenizer is unknown. {pass_it}"
    assert refusal(source, tokenizer=make_tokenizer(300)) == (
        f"{start}the tokenizer knows 300 tokens and it embeds 400. Pass the {belongs}"
    )
    assert refusal(make_model(vocab_size=300), tokenizer=make_tokenizer()) == (
        f"{start}its tokenizer has a token 381 and the model embeds only 300 tokens. Use the "
        f"{belongs}"
    )
    sentence = refusal(source, tokenizer=lambda text: text)
    assert "its tokenizer (function) is not a fast one of transformers and" in sentence
    assert refusal(source, tokenizer="gpt2") == (
        f"{start}tokenizer='gpt2' is a name. Pass what AutoTokenizer.from_pretrained('gpt2') "
        "returns."
    )
    assert refusal("tiny-senses", probe.InputError, tokenizer=make_tokenizer()) == (
        "Cannot load tiny-senses with tokenizer=: a name, a folder and a file have a tokenizer. "
        "Omit it."
    )
