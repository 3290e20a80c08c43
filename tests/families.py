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
from seeds import campaign_except
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from probe.model.architectures import FAMILIES
from probe.model.load import load
from probe.model.model import Model

LAYERS, HEADS, VOCABULARY = 2, 4, 400  # of the tiny models; hybrids have three layers
# Some layers of a hybrid have no attention. Tests that need every layer do not apply to hybrids,
# which have separate tests.
HYBRIDS = tuple(
    kind for kind, family in FAMILIES.items() if any(stack.mixer for stack in family.attentions)
)
KINDS = tuple(kind for kind in FAMILIES if kind not in HYBRIDS)
PAIRED = tuple(kind for kind in KINDS if FAMILIES[kind].kind == "encoder-decoder")
ENCODERS = tuple(kind for kind in KINDS if FAMILIES[kind].kind == "encoder")
SINGLE = tuple(kind for kind in KINDS if kind not in PAIRED)
# Tests of families run on these. Together they have fused and separate weights, learned, rotary and
# relative positions, grouped heads, gated MLPs, windows, caps, norms before and after, both masks,
# one stack and two. `model/test_families.py` tests the contract of every other row. A rule that no
# representative has is tested on one family with the rule.
REPRESENTATIVES = ("gpt2", "llama", "gemma2", "bert", "t5")
# Switches of a config that change a formula or add weights, all of one family.
BOTH = {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 5}
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "GPT-2 divided by layer": ("gpt2", BOTH),
    "Llama with biases": ("llama", {"attention_bias": True}),
    "Qwen2 with a local layer": ("qwen2", QWEN_WINDOW | {"max_window_layers": 1}),
}
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
    `folder`."""
    random_model(kind, seed=seed, architecture=architecture, **changes).save_pretrained(folder)
    family_tokenizer(kind).save_pretrained(folder)
    return folder


def model_class(kind: str) -> type[PreTrainedModel]:
    """Hugging Face's class of the family with a language-model head."""
    return getattr(transformers, FAMILIES[kind].architectures[0])


class HeadSizes(NamedTuple):
    """The number of heads with keys and values, and the widths of the stream and of a head."""

    kv_heads: int
    d_model: int
    d_head: int


def head_sizes(model: Model) -> HeadSizes:
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
    config = default_class.config_class(**{**FAMILIES[kind].tiny_config, **changes})
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


# One of each kind of mixer: a short convolution, a gated delta rule, a state space.
EACH_HYBRID = each_family(*HYBRIDS, also=("lfm2", "qwen3_next", "bamba"))


EXACT = {"rtol": 0, "atol": 1e-12}
ROUNDED = {"rtol": 0, "atol": 1e-6}


def near(kind: str) -> dict[str, float]:
    """Equal up to rounding; up to that of float32 if the family's code computes the softmax in
    float32 for every type."""
    return ROUNDED if "softmax" in FAMILIES[kind].in_float32 else EXACT


def assert_near(actual: torch.Tensor, exact: torch.Tensor, close: dict[str, float]) -> None:
    """Equal, relative to the scale of the tensor."""
    scale = exact.abs().max()
    torch.testing.assert_close(actual / scale, exact / scale, **close)


@cache
def family_model(kind: str, dtype: torch.dtype = torch.float32, *, seed: int = 0) -> Model:
    """A loaded random model of the family, or of a variant. Shared: do not change it."""
    family, changes = VARIANTS.get(kind, (kind, {}))
    with TemporaryDirectory() as folder:
        path = make_family(Path(folder) / kind, family, seed=seed, **changes)
        return load(path, dtype=dtype)
