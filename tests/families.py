"""Small random models of every family, with the real architecture and random biases and norms; and
the tolerance of two tensors."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
import transformers
from checkpoints import SENTENCES
from inside import FAMILIES
from seeds import campaign_except
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import probe

LAYERS, HEADS, VOCABULARY = 2, 4, 400  # of the tiny models; hybrids have three layers
# Some layers of a hybrid have no attention. Tests that need every layer do not apply to hybrids,
# which have separate tests.
HYBRIDS = tuple(
    kind for kind, family in FAMILIES.items() if any(stack.mixer for stack in family.attentions)
)
KINDS = tuple(kind for kind in FAMILIES if kind not in HYBRIDS)
PAIRED = tuple(kind for kind in KINDS if FAMILIES[kind].kind == "encoder-decoder")
SINGLE = tuple(kind for kind in KINDS if kind not in PAIRED)
# Tests of families run on these. Together they have fused and separate weights, learned, rotary and
# relative positions, grouped heads, gated MLPs, windows, caps, norms before and after, both masks,
# one stack and two. `model/test_families.py` tests the contract of every other row. A rule that no
# representative has is tested on one family with the rule.
REPRESENTATIVES = ("gpt2", "llama", "gemma2", "bert", "t5")
# Settings of a config that change a formula or add weights: the family, what is set, and what the
# read config then says.
BY_LAYER, UPCAST = "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 5}
LONG = {"short_factor": [1.0, 1.5, 2.0, 5.0], "long_factor": [2.0, 4.0, 8.0, 9.0]}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 256}
LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
DEFAULT = {"rope_type": "default", "rope_theta": 1e4}


def rope(kind: str, **settings: object) -> dict[str, object]:
    """The setting of rotary positions that are scaled for long texts."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4} | settings}


def with_biases(roles: str, name: str = "attention_bias", *, on: bool = True):
    """A setting that decides which products of attention have a bias."""
    return {name: on}, {"biased_roles": roles}


SETTINGS: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "gpt2, divided by layer": ("gpt2", {BY_LAYER: True}, {"scores_by_layer": True}),
    "gpt2, widened scores": ("gpt2", {UPCAST: True}, {"scores_by_layer": False}),
    "gpt2, both": ("gpt2", {BY_LAYER: True, UPCAST: True}, {"scores_by_layer": True}),
    "gpt2, untied": ("gpt2", {"tie_word_embeddings": False}, {"tied": False}),
    "gpt2, usual MLP": ("gpt2", {"n_inner": None}, {"d_mlp": 4 * 28}),
    "gpt2, ReLU": ("gpt2", {"activation_function": "relu"}, {"activation": "relu"}),
    "gpt2, exact GELU": ("gpt2", {"activation_function": "gelu"}, {"activation": "gelu"}),
    "t5, gated": ("t5", {"feed_forward_proj": "gated-gelu"}, {"gated_mlp": True}),
    "blenderbot, deep": ("blenderbot", {"decoder_layers": 3}, {"n_decoder_layers": 3}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}, {"tied": True}),
    "llama, one key": ("llama", {"num_key_value_heads": 1}, {"n_kv_heads": 1}),
    "llama, biased": ("llama", *with_biases("qkvo")),
    "qwen3, biased": ("qwen3", *with_biases("qkvo")),
    "gemma2, biased": ("gemma2", *with_biases("qkvo")),
    "nemotron, biased": ("nemotron", *with_biases("qkvo")),
    "bamba, biased": ("bamba", *with_biases("qkvo")),
    "seed_oss, all biases": ("seed_oss", *with_biases("qkvo", "attention_out_bias")),
    "stablelm, biased": ("stablelm", *with_biases("qkv", "use_qkv_bias")),
    "glm4, unbiased": ("glm4", *with_biases("", on=False)),
    "qwen2_moe, unbiased": ("qwen2_moe", *with_biases("", "qkv_bias", on=False)),
    "qwen2, local from 1": (
        "qwen2",
        QWEN_WINDOW | {"max_window_layers": 1},
        {"window": 5, "local": (False, True)},
    ),
    "qwen2, local by a list": (
        "qwen2",
        QWEN_WINDOW | {"layer_types": ["sliding_attention", "full_attention"]},
        {"window": 5, "local": (True, False)},
    ),
    "qwen3_moe, all local": ("qwen3_moe", QWEN_WINDOW, {"local": (True, True)}),
    "qwen2_moe, some local": ("qwen2_moe", QWEN_WINDOW, {"local": (True, False)}),
    "qwen2_moe, none local": (
        "qwen2_moe",
        QWEN_WINDOW | {"max_window_layers": 0},
        {"window": 0, "local": ()},
    ),
    "exaone4, all global": (
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 2}
        | {"sliding_window_pattern": None},
        {"positions.unrotated": ()},
    ),
    "granite 4, no positions": (
        "granitemoehybrid",
        {"position_embedding_type": "nope"},
        {"positions.unrotated": (True, True, True)},
    ),
    "llama 3": ("llama", rope("llama3", **LLAMA3), {"positions.rope_scaling.high": 4.0}),
    "llama, linear": ("llama", rope("linear", factor=3.0), {"positions.rope_scaling.factor": 3.0}),
    "llama, dynamic": ("llama", rope("dynamic", factor=3.0), {"positions.rope_scaling": None}),
    "qwen2, YaRN": ("qwen2", rope("yarn", factor=4.0), {"positions.rope_scaling.kind": "yarn"}),
    "Phi-4-mini": (
        "phi3",
        rope("longrope", **LONG) | {"original_max_position_embeddings": 36},
        {"positions.rope_scaling.kind": "longrope", "n_ctx": 36},
    ),
    "the text part of a Gemma 3 4B": (
        "gemma3_text",
        {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": DEFAULT}},
        {"positions.rope_scaling.kind": "linear"},
    ),
}
# Settings that are read like another row's are cases of the campaign.
ALIKE = ("qwen3, biased", "gemma2, biased", "nemotron, biased", "glm4, unbiased")
ALIKE += ("gpt2, divided by layer", "gpt2, widened scores", "gpt2, exact GELU", "llama, linear")
ALIKE += ("qwen2, local by a list", "qwen2_moe, some local")
SPREAD = {1: 0.1}  # 0.25 elsewhere
# The special tokens at both ends of a text, by kind of family, and of families with others.
MARKS = {"decoder": ("", ""), "encoder": ("[CLS]", "[SEP]"), "encoder-decoder": ("", "</s>")}
OTHER_MARKS = {"llama": ("<s>", ""), "modernbert-decoder": ("[CLS]", "")}
OTHER_MARKS |= dict.fromkeys(
    ("roberta", "xlm-roberta", "camembert", "bart", "mbart"), ("<s>", "</s>")
)


def make_family(
    folder: Path, kind: str, *, seed: int = 0, architecture: str = "", **changes: object
) -> Path:
    """Write config.json, model.safetensors and a fast tokenizer with the family's special tokens to
    `folder`. `kind` may be one of SETTINGS."""
    random_model(kind, seed=seed, architecture=architecture, **changes).save_pretrained(folder)
    family_tokenizer(kind).save_pretrained(folder)
    return folder


def model_class(kind: str) -> type[PreTrainedModel]:
    """Hugging Face's class of the family with a language-model head."""
    return getattr(transformers, FAMILIES[of_setting(kind)[0]].architectures[0])


def of_setting(kind: str) -> tuple[str, dict[str, object], dict[str, object]]:
    """The row of SETTINGS, or that of a family without any."""
    return SETTINGS.get(kind, (kind, {}, {}))


class HeadSizes(NamedTuple):
    """The number of heads with keys and values, and the widths of the stream and of a head."""

    kv_heads: int
    d_model: int
    d_head: int


def head_sizes(model: probe.Model) -> HeadSizes:
    """The sizes of heads, from transformers' config alone."""
    settings = model.bridge.original_model.config
    shared = getattr(settings, "num_key_value_heads", None) or settings.num_attention_heads
    multi_query = getattr(settings, "multi_query", False)
    even = settings.hidden_size // settings.num_attention_heads
    d_head = getattr(settings, "head_dim", None) or even
    return HeadSizes(1 if multi_query else shared, settings.hidden_size, d_head)


def random_model(
    kind: str, *, seed: int = 0, architecture: str = "", **changes: object
) -> PreTrainedModel:
    """Hugging Face's model of the family, tiny and random; of the class `architecture` if it is
    given."""
    default_class = model_class(kind)
    family, settings, _ = of_setting(kind)
    tiny = dict(FAMILIES[family].tiny_config)
    config = default_class.config_class(**tiny | settings | changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (getattr(transformers, architecture) if architecture else default_class)(
            config
        ).eval()
        perturb(model)
    return model


def perturb(model: PreTrainedModel) -> None:
    """Make every weight random, and not close to 0 by accident, with gains around their initial
    values. Sinusoidal tables are unchanged."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                noise = torch.randn_like(parameter) * SPREAD.get(parameter.dim(), 0.25)
                gain = ("norm" in name.lower() or "ln_" in name) and name.endswith("weight")
                parameter.copy_(noise + parameter if gain else noise)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(0, 0.1)


def family_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE with the family's special tokens at the family's ids."""
    kind, *_ = of_setting(kind)
    family = FAMILIES[kind]
    first, last = OTHER_MARKS.get(kind, MARKS[family.kind])
    begin = (
        (first, "<pad>") if first == "<s>" and last else ("<pad>", first)
    )  # RoBERTa does not use token 1
    special = [token for token in (*begin, last, "<unk>", "[MASK]") if token]
    bpe = Tokenizer.from_str(_trained(*special))
    if first or last:
        template = " ".join(part for part in (first, "$A", last) if part)
        marks = [(token, bpe.token_to_id(token)) for token in (first, last) if token]
        bpe.post_processor = processors.TemplateProcessing(single=template, special_tokens=marks)
    token_names = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": last or "<pad>"}
    token_names["bos_token"] = None if family.adds_special_tokens else "<pad>"
    return PreTrainedTokenizerFast(tokenizer_object=bpe, **token_names)


@cache
def _trained(*special: str) -> str:
    """A byte-level BPE of SENTENCES with these special tokens, as JSON."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    options = {
        "initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet()),
        "show_progress": False,
    }
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 10, special_tokens=list(special), **options
    )
    bpe.train_from_iterator(SENTENCES, trainer)
    return bpe.to_str()


def each_family(*kinds: str, also: Sequence[str] = ()) -> list:
    """Parameters of a test over `kinds`, by default all but hybrids.

    Representatives always run, and so do families in `also`, which have a rule that no representative
    has. The others are left to `make campaign`.
    """
    return campaign_except(kinds or KINDS, (*REPRESENTATIVES, *also))


# A short convolution, and a gated delta rule with gated heads and experts.
EACH_HYBRID = each_family(*HYBRIDS, also=("lfm2", "qwen3_next"))


EXACT = {"rtol": 0, "atol": 1e-12}
ROUNDED = {"rtol": 0, "atol": 1e-6}
# Of a recurrence in float32, whose sums run over the text, in two forms of the library.
RECURRENT = {"rtol": 0, "atol": 3e-6}


def near(kind: str) -> dict[str, float]:
    """Equal up to rounding; up to that of float32 if the family's code computes the softmax in
    float32 for every type."""
    return ROUNDED if "softmax" in FAMILIES[kind].in_float32 else EXACT


def assert_near(actual: torch.Tensor, exact: torch.Tensor, close: dict[str, float]) -> None:
    """Equal, relative to the scale of the tensor."""
    scale = exact.abs().max()
    torch.testing.assert_close(actual / scale, exact / scale, **close)


@cache
def family_model(kind: str, dtype: torch.dtype = torch.float32, *, seed: int = 0) -> probe.Model:
    """A loaded random model of the family or setting. Shared: do not change it."""
    with TemporaryDirectory() as folder:
        return probe.load(make_family(Path(folder) / kind, kind, seed=seed), dtype=dtype)
