"""What `analyses/speed.py` and `analyses/cost_of_shortcuts.py` time: models of real shapes with random weights, random
ids, and the usual implementations; and how they time it: works take turns, so that a slow minute of the machine affects
all of them, and ratios are computed turn by turn.

Times depend on shapes alone, so nothing has to be downloaded: the tokenizer is the embedded model's, and only ids are
used.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformer_lens.tools.analysis.attribution_patching import (
    EdgeAttributionConfig,
    attribution_patch,
)

from probe.model.bridge import quiet
from probe.model.load import load, read_weights
from probe.model.model import Model
from probe.model.tokens import Tokens
from probe.model.trace import target_states
from probe.model.variants import TargetText
from probe.patching.gradients import attribute_heads

Work = Callable[[], object]
LLAMA_135M = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
NEOX_160M = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 50304,
}
# By name: the class of the config, the class of the model, and the values that differ from the defaults.
SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tiny": ("GPT2Config", "GPT2LMHeadModel", {"n_layer": 4, "n_head": 4, "n_embd": 128}),
    "gpt2-small": ("GPT2Config", "GPT2LMHeadModel", {"n_layer": 12, "n_head": 12, "n_embd": 768}),
    "llama-135m": ("LlamaConfig", "LlamaForCausalLM", LLAMA_135M),
    "neox-160m": ("GPTNeoXConfig", "GPTNeoXForCausalLM", NEOX_160M),
    "bert-base": ("BertConfig", "BertForMaskedLM", {}),
}
CUE_BEFORE = 5
# The submodule of a block that multiplies the z of all heads with W_O, by model type.
WRITERS = {"gpt2": "attn.c_proj", "llama": "self_attn.o_proj", "gpt_neox": "attention.dense"}


def interleave(works: Mapping[str, Work], *, runs: int) -> pd.DataFrame:
    """Run the works in turn, `runs` times each, after one turn that is not counted. `work run seconds`"""
    for work in works.values():
        work()
    rows = [(name, run, _seconds(work)) for run in range(runs) for name, work in works.items()]
    return pd.DataFrame(rows, columns=["work", "run", "seconds"])


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(
    timings: pd.DataFrame, work: str, against: str, *, times: float = 1.0
) -> dict[str, float]:
    """Seconds of `work`, of `times` runs of `against`, and their ratio in the same turn: median, lowest and highest."""
    seconds = timings.pivot(index="run", columns="work", values="seconds")
    columns = {"seconds": seconds[work], "against_seconds": seconds[against] * times}
    columns["ratio"] = columns["seconds"] / columns["against_seconds"]
    return {
        name + ending: float(getattr(values, how)())
        for name, values in columns.items()
        for ending, how in (("", "median"), ("_low", "min"), ("_high", "max"))
    }


def shaped(shape: str) -> Model:
    """A model of one of the SHAPES with random weights and the embedded model's tokenizer."""
    import transformers
    from transformer_lens.model_bridge import TransformerBridge

    config_class, model_class, usual = SHAPES[shape]
    config = getattr(transformers, config_class)(**usual)
    config.architectures = [model_class]
    tokenizer = copy.deepcopy(load("tiny-senses").tokenizer)
    tokenizer.init_kwargs |= {"add_bos_token": True, "name_or_path": shape}
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(0)
        plain = getattr(transformers, model_class)._from_config(config, attn_implementation="eager")
        bridge = TransformerBridge.boot_transformers(shape, hf_model=plain, tokenizer=tokenizer)
        return load(bridge.eval().requires_grad_(False))


def plain_model(model: Model) -> Any:
    """Hugging Face's model of the same shape without its head, with its fastest attention, sdpa, for bare forward
    passes.
    """
    from transformers import AutoModel

    with torch.random.fork_rng(devices=[]), quiet():
        # A copy, because the choice of attention is written into the config.
        config = copy.deepcopy(model.bridge.original_model.config)
        plain = AutoModel.from_config(config, attn_implementation="sdpa")
    plain.load_state_dict(dict(model.weights), strict=False, assign=True)
    return plain.to(model.device).eval().requires_grad_(False)


def bare_forward(plain: Any, rows: Sequence[Sequence[int]], *, batch: int) -> Tensor:
    """The last hidden state at the last position, batch by batch. `-> row d_model`"""
    states = []
    with torch.inference_mode():
        for start in range(0, len(rows), batch):
            ids = torch.tensor(rows[start : start + batch], device=plain.device)
            states.append(plain(ids).last_hidden_state[:, -1])
    return torch.cat(states)


def random_tokens(model: Model, rows: int, length: int, *, seed: int = 0) -> list[Tokens]:
    """Rows of random ids as tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(model.config.d_vocab, (rows, length), generator=generator).tolist()
    return [tokens_of(row) for row in ids]


def tokens_of(ids: Sequence[int]) -> Tokens:
    """Ids as tokens of one character each."""
    spans = tuple((pos, pos + 1) for pos in range(len(ids)))
    return Tokens("·" * len(ids), tuple(ids), ("·",) * len(ids), spans, False)


def aligned_pairs(
    model: Model, pairs: int, length: int, *, seed: int = 0
) -> tuple[list[tuple[int, ...]], ...]:
    """Pairs that differ in one token, the cue, CUE_BEFORE tokens before the end, as in one frame.

    `-> rows of a, rows of b`
    """
    a = [tokens.ids for tokens in random_tokens(model, pairs, length, seed=seed)]
    cue = max(0, length - 1 - CUE_BEFORE)
    return a, [(*row[:cue], (row[cue] + 1) % model.config.d_vocab, *row[cue + 1 :]) for row in a]


def read_at_end(rows: Sequence[Sequence[int]]) -> list[TargetText]:
    """Texts that are read at their last token, also by a model that reads both ways."""
    return [TargetText(tuple(row), len(row) - 1) for row in rows]


def loop_over_heads(
    model: Model,
    pairs: Sequence[Sequence[Sequence[int]]],
    direction: Tensor,
    heads: Sequence[tuple[int, int]],
) -> Tensor:
    """The effect of swaps as in other tools: one whole forward pass with a hook per head and direction, as
    `get_act_patch_attn_head_z` does. `-> pair recipient head`

    pairs: rows of a and rows of b
    direction: along which the output of the last block at the last position is read, `d_model`
    """
    both = [torch.tensor(rows, device=model.device) for rows in pairs]
    last = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
    runs = [
        model.bridge.run_with_cache(
            ids, names_filter=lambda name: name.endswith(("attn.hook_z", last))
        )
        for ids in both
    ]
    unchanged = [cache[last][:, -1] @ direction for _, cache in runs]
    donors = [cache for _, cache in reversed(runs)]
    sides = []
    for ids, base, donor in zip(both, unchanged, donors, strict=True):
        effects = []
        for layer, head in heads:
            caught: list[Tensor] = []

            def patch(
                z: Tensor, hook: Any, layer: int = layer, head: int = head, donor: Any = donor
            ) -> Tensor:
                z[:, -1, head] = donor[f"blocks.{layer}.attn.hook_z"][:, -1, head]
                return z

            def keep(resid: Tensor, hook: Any, caught: list[Tensor] = caught) -> None:
                caught.append(resid.clone())

            hooks = [(f"blocks.{layer}.attn.hook_z", patch), (last, keep)]
            with torch.inference_mode():
                model.bridge.run_with_hooks(ids, fwd_hooks=hooks)
            effects.append(caught[0][:, -1] @ direction - base)
        sides.append(torch.stack(effects, dim=1))
    return torch.stack(sides, dim=1)


def attribution_by_autograd(
    plain: Any, pairs: Sequence[Sequence[Sequence[int]]], direction: Tensor, heads: int
) -> Tensor:
    """Attribution patching in its plainest form: one forward pass of both members of each pair and one backward pass,
    with Hugging Face's model and torch.autograd. `-> pair recipient layer head`

    pairs: rows of a and rows of b
    direction: along which the last hidden state at the last position is read, `d_model`

    attribution = <gradient at the recipient, z of the other member - z of the recipient>
    """
    a, b = pairs
    blocks = plain.h if hasattr(plain, "h") else plain.layers
    z_of_blocks: list[Tensor] = []

    def keep(module: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = args[0] if args[0].requires_grad else args[0].detach().requires_grad_()
        z.retain_grad()
        z_of_blocks.append(z)
        return (z, *args[1:])

    writers = [block.get_submodule(WRITERS[plain.config.model_type]) for block in blocks]
    hooks = [writer.register_forward_pre_hook(keep) for writer in writers]
    try:
        ids = torch.tensor([*a, *b], device=plain.device)
        (plain(ids).last_hidden_state[:, -1] @ direction).sum().backward()
    finally:
        for hook in hooks:
            hook.remove()
    z = torch.stack([z.detach()[:, -1] for z in z_of_blocks], 1)  # row layer (head d_head)
    gradient = torch.stack([z.grad[:, -1] for z in z_of_blocks], 1)
    scores = (gradient * (z.roll(len(a), 0) - z)).unflatten(-1, (heads, -1)).sum(-1)
    return scores.unflatten(0, (2, -1)).transpose(0, 1)


def attribution_by_transformer_lens(
    model: Model, pairs: Sequence[Sequence[Sequence[int]]], tokens: tuple[int, int]
) -> list[Any]:
    """TransformerLens' attribution patching of the difference of two logits, with each side as the clean one."""
    a, b = (torch.tensor(rows, device=model.device) for rows in pairs)
    first, second = tokens
    model.bridge.requires_grad_(True)  # TransformerLens' gradients start at the weights
    try:
        return [
            attribution_patch(
                model.bridge,
                clean,
                corrupt,
                lambda logits: logits[0, -1, first] - logits[0, -1, second],
                EdgeAttributionConfig(granularity="node"),
            )
            for clean, corrupt in ((a, b), (b, a))
        ]
    finally:
        model.bridge.requires_grad_(False)


def both_ways_by_gradients(
    model: Model, pairs: Sequence[Sequence[Sequence[int]]], direction: Tensor, *, steps: int
) -> Tensor:
    """The estimates of attribution patching, including the states of both members. `-> pair recipient layer head`

    direction: along which the output of the last block is read, `d_model`
    steps: of integrated gradients; 0 for attribution patching
    """
    a, b = pairs
    weights = read_weights(model)
    layers, length = len(weights.blocks), len(a[0])
    rows = [tokens_of(row) for row in (*a, *b)]
    z = target_states(model, rows, [length - 1] * len(rows)).z
    along = direction.expand(len(rows), layers, -1)
    estimates = attribute_heads(
        weights, [*a, *b], z.roll(len(a), 0), along, [layers] * layers, steps=steps
    )
    return estimates.unflatten(0, (2, -1)).transpose(0, 1)
