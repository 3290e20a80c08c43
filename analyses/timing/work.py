"""The works that are timed: models of real shapes with random weights, random ids, and the usual implementations.

Times depend on shapes alone, so nothing has to be downloaded: the tokenizer is the embedded model's, and only ids are
used.
"""

import copy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
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
from probe.model.records import TargetTrace
from probe.model.tokens import Tokens
from probe.model.trace import target_states, trace_target
from probe.patching import sets
from probe.patching.edges import EdgeArray
from probe.patching.gradients import attribute_heads
from probe.patching.heads import swap_pairs
from probe.patching.sets import mask_of, random_sets
from timing.clock import Work, extra_memory, interleave

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
LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
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
    "gpt2-medium": ("GPT2Config", "GPT2LMHeadModel", {"n_layer": 24, "n_head": 16, "n_embd": 1024}),
    "llama-135m": ("LlamaConfig", "LlamaForCausalLM", LLAMA_135M),
    "llama-1b": ("LlamaConfig", "LlamaForCausalLM", LLAMA_1B),
    "neox-160m": ("GPTNeoXConfig", "GPTNeoXForCausalLM", NEOX_160M),
    "bert-base": ("BertConfig", "BertForMaskedLM", {}),
}
CUE_BEFORE = 5
TOKENS = (8, 32, 128, 512, 1024)
GROWN: dict[str, dict[str, tuple[int, ...]]] = {
    "tiny": {"sentences": (64, 256, 1024, 4096), "pairs": (2, 8, 32), "tokens": TOKENS},
    "gpt2-small": {"sentences": (64, 256, 1024, 4096), "pairs": (2, 4, 8, 16), "tokens": TOKENS},
    "gpt2-medium": {"sentences": (64, 128, 256), "pairs": (2, 4), "tokens": TOKENS},
}
QUICK: dict[str, dict[str, tuple[int, ...]]] = {
    "tiny": {"sentences": (4, 8, 16), "pairs": (1, 2), "tokens": (8, 16, 32)}
}


def shaped(
    shape: str,
    *,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    **sizes: Any,
) -> Model:
    """A model of one of the SHAPES with random weights and the embedded model's tokenizer.

    sizes: other values of the config, such as `n_layer=8`
    """
    import transformers
    from transformer_lens.model_bridge import TransformerBridge

    config_class, model_class, usual = SHAPES[shape]
    config = getattr(transformers, config_class)(**usual | sizes)
    config.architectures = [model_class]
    tokenizer = copy.deepcopy(load("tiny-senses").tokenizer)
    tokenizer.init_kwargs |= {"add_bos_token": True, "name_or_path": shape}
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        with torch.device(device):  # draws random numbers on the device where they are needed
            plain = getattr(transformers, model_class)._from_config(
                config, attn_implementation="eager"
            )
        plain = plain.to(device, dtype)
        bridge = TransformerBridge.boot_transformers(
            shape, hf_model=plain, tokenizer=tokenizer, device=device
        )
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


def curve_sets(layers: int, heads: int, *, seed: int = 0) -> Tensor:
    """The sets of a whole curve: every nested set of an order of all heads, and random sets of several sizes with the
    same number of heads in each layer.

    `-> set layer head`
    """
    rng = np.random.default_rng(seed)
    order = [divmod(int(index), heads) for index in rng.permutation(layers * heads)]
    masks = [mask_of(order[:size], (layers, heads)) for size in range(1, len(order) + 1)]
    for size in np.geomspace(1, len(order) - 1, sets.SIZES).round().astype(int).tolist():
        masks += list(random_sets(mask_of(order[:size], (layers, heads)), sets.RANDOM_SETS, rng))
    return torch.from_numpy(np.array(masks))


def words_of(model: Model) -> list[str]:
    """The words that are one token inside a text, in the order of their ids."""
    pieces = sorted(model.tokenizer.get_vocab().items(), key=lambda item: item[1])
    words = [model.tokenizer.decode([token]) for _, token in pieces]
    plain = [word for word in words if word.startswith(" ") and word[1:].isalpha()]
    return [word for word in plain if len(model.tokenizer(word)["input_ids"]) == 1]


def drawn_texts(
    model: Model, pairs: int, length: int, *, seed: int = 0
) -> tuple[list[str], list[str]]:
    """Pairs of texts of `length` tokens, including BOS, that differ in one word, CUE_BEFORE tokens before the end."""
    rng = np.random.default_rng(seed)
    words = words_of(model)
    a = [list(rng.choice(words, length - model.config.prepend_bos)) for _ in range(pairs)]
    b = [list(row) for row in a]
    for row_a, row_b in zip(a, b, strict=True):
        row_a[-1 - CUE_BEFORE], row_b[-1 - CUE_BEFORE] = rng.choice(words, 2, replace=False)
    return ["".join(row) for row in a], ["".join(row) for row in b]


def loop_over_heads(
    model: Model,
    pairs: Sequence[Sequence[Sequence[int]]],
    read: Tensor | Callable[[Tensor], Tensor],
    heads: Sequence[tuple[int, int]],
) -> Tensor:
    """The effect of swaps as in other tools: one whole forward pass with a hook per head and direction, as
    `get_act_patch_attn_head_z` does. `-> pair recipient head`

    pairs: rows of a and rows of b
    read: a direction, `d_model` or `pair d_model`, along which the last block's output at the last position is read, or
        a function of the logits there, `row d_vocab -> row`
    """
    both = [torch.tensor(rows, device=model.device) for rows in pairs]
    last = f"blocks.{model.config.n_layers - 1}.hook_resid_post"

    def value(resid: Tensor, logits: Tensor) -> Tensor:
        return read(logits[:, -1]) if callable(read) else (resid[:, -1] * read).sum(-1)

    runs = [
        model.bridge.run_with_cache(
            ids, names_filter=lambda name: name.endswith(("attn.hook_z", last))
        )
        for ids in both
    ]
    unchanged = [value(cache[last], logits) for logits, cache in runs]
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
                logits = model.bridge.run_with_hooks(ids, fwd_hooks=hooks)
            effects.append(value(caught[0], logits) - base)
        sides.append(torch.stack(effects, dim=1))
    return torch.stack(sides, dim=1)


# The submodule of a block that multiplies the z of all heads with W_O, by model type.
WRITERS = {"gpt2": "attn.c_proj", "llama": "self_attn.o_proj", "gpt_neox": "attention.dense"}


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


def loop_over_edges(
    model: Model, pair: Sequence[Sequence[int]], direction: Tensor, edges: EdgeArray
) -> Tensor:
    """The total effect of edges from head to head as in other tools. `-> recipient edge`

    Two whole forward passes with hooks for each edge: in the first all components but the sender are frozen, in the
    second the receiver gets its query, key or value of the first, at its position only.

    pair: the two members, each the other's donor, with the word as their last token
    """
    ids = torch.tensor(pair, device=model.device)
    last = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
    _, base = model.bridge.run_with_cache(
        ids, names_filter=lambda name: name.endswith(("attn.hook_z", "hook_mlp_out", last))
    )
    effects, frozen_names = [], [name for name in base if name != last]

    def hook_on(name: str, change: Callable[[Tensor], None]) -> tuple[str, Callable[..., Tensor]]:
        def hooked(tensor: Tensor, hook: Any) -> Tensor:
            tensor = base[name].clone() if name in frozen_names else tensor
            change(tensor)
            return tensor

        return name, hooked

    for edge in edges:
        caught = dict[str, Tensor]()
        note = {name: partial(_keep, caught, name) for name in ("taken", "end")}
        sender, receiver = int(edge["sender_head"]), int(edge["receiver_head"])
        at, to = int(edge["sender_pos"]) - 1, int(edge["receiver_pos"]) - 1  # counted from the end
        sender_hook, receiver_hook = (
            f"blocks.{edge[f'{end}_layer']}.attn.hook_" for end in ("sender", "receiver")
        )
        channel_hook, channel_pos = (
            receiver_hook + str(edge["channel"])[0],
            to if edge["channel"] == "query" else at,
        )

        def donate(z: Tensor, at: int = at, head: int = sender) -> None:
            z[:, at, head] = z[:, at, head].flip(0)

        def take_from_sender(
            x: Tensor, at: int = channel_pos, head: int = receiver, caught: Any = caught
        ) -> None:
            x[:, at, head] = caught["taken"][:, at, head]

        def only_there(
            z: Tensor,
            hook: Any,
            name: str = f"{receiver_hook}z",
            to: int = to,
            head: int = receiver,
        ) -> Tensor:
            base_z = base[name].clone()
            base_z[:, to, head] = z[:, to, head]
            return base_z

        freeze_hooks = [
            hook_on(name, donate if name == f"{sender_hook}z" else lambda z: None)
            for name in frozen_names
        ]
        with torch.inference_mode():
            model.bridge.run_with_hooks(
                ids, fwd_hooks=[*freeze_hooks, (channel_hook, note["taken"])]
            )
            model.bridge.run_with_hooks(
                ids,
                fwd_hooks=[
                    hook_on(channel_hook, take_from_sender),
                    (f"{receiver_hook}z", only_there),
                    (last, note["end"]),
                ],
            )
        effects.append((caught["end"][:, -1] - base[last][:, -1]) @ direction)
    return torch.stack(effects, dim=1)


def _keep(caught: dict[str, Tensor], name: str, tensor: Tensor, hook: Any) -> None:
    caught[name] = tensor.clone()


def architecture(
    shape: str, *, pairs: int, length: int, sentences: int, runs: int
) -> tuple[pd.DataFrame, float]:
    """The timings of all swaps of a shape in both directions, of the bare forward pass of the pairs, of a hooked forward
    pass per head, of reading sentences, and of their bare forward pass. `work run seconds`

    The hooked forward passes are run for one head of every third layer. The second result is the number of all forward
    passes, with two traces, over the number that was run.
    """
    model = shaped(shape)
    weights, plain = read_weights(model), plain_model(model)
    layers, heads, d_model, _ = weights.shape
    a, b = aligned_pairs(model, pairs, length)
    direction = torch.full((d_model,), d_model**-0.5)
    sample = [(layer, layer % heads) for layer in range(0, layers, 3)]
    read = random_tokens(model, sentences, length)
    works: dict[str, Work] = {
        "swaps": lambda: swap_pairs(weights, a, b, direction[None], depth=layers),
        "forward": lambda: bare_forward(plain, [*a, *b], batch=2 * pairs),
        "loop": lambda: loop_over_heads(model, (a, b), direction, sample),
        "read": lambda: target_states(model, read, [length - 1] * sentences),
        "read bare": lambda: bare_forward(
            plain, [tokens.ids for tokens in read], batch=1024 // length
        ),
    }
    return interleave(works, runs=runs), (2 * layers * heads + 2) / (2 * len(sample) + 2)


def long_text(model: Model, length: int, *, runs: int) -> dict[str, float]:
    """Median extra MiB and seconds of a trace at the last position of a text of `length` tokens, and of a full cache.

    `sources`: MiB of splitting ΔE of every head by source token there, including the values that it needs.
    """
    (text,) = random_tokens(model, 1, length)
    ids = torch.tensor([text.ids], device=model.device)
    traces: list[TargetTrace] = []

    def cache() -> None:
        with torch.inference_mode():
            model.bridge.run_with_cache(ids)

    def memory_of(work: Work) -> tuple[float, float]:
        # The bridge keeps tensors of its last run: a short run frees the tensors of the run before.
        with torch.inference_mode():
            model.bridge(ids[:, :2])
        traces.clear()
        return extra_memory(work)

    turns = [
        (
            *memory_of(cache),
            *memory_of(lambda: traces.append(trace_target(model, text, length - 1))),
        )
        for _ in range(runs + 1)
    ]
    trace = traces[-1]
    layers, heads, *_ = trace.weights.shape
    head_indices = [(layer, head) for layer in range(layers) for head in range(heads)]
    sources, _ = extra_memory(
        lambda: [trace.delta_e_by_source(*index).norm(dim=-1) for index in head_indices]
    )
    medians = dict(
        zip(
            ("cached", "cached_seconds", "traced", "traced_seconds"),
            np.median(turns[1:], axis=0),
            strict=True,
        )
    )
    return {name: float(value) for name, value in medians.items()} | {
        "sources": sources + trace.v.nbytes / 2**20
    }


def start_up(*, runs: int) -> dict[str, float]:
    """Median seconds of `import probe` and of `probe --help`, each in a new process."""

    def command(*arguments: str) -> Work:
        return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    works = {
        "import probe": command("-c", "import probe"),
        "probe --help": command("-m", "probe", "--help"),
    }
    seconds = interleave(works, runs=runs).groupby("work")["seconds"].median()
    return {name: float(seconds[name]) for name in works}


def growth(*, length: int, quick: bool) -> pd.DataFrame:
    """Seconds and extra MiB of reading sentences, swapping pairs and tracing one text, by shape.

    `shape axis size seconds megabytes`
    """
    rows = [
        row
        for shape, sizes in (QUICK if quick else GROWN).items()
        for row in _grown(shape, sizes, length)
    ]
    return pd.DataFrame(rows, columns=["shape", "axis", "size", "seconds", "megabytes"])


def _grown(shape: str, sizes: Mapping[str, Sequence[int]], length: int) -> list[tuple[object, ...]]:
    model = shaped(shape)
    weights = read_weights(model)
    direction = torch.ones(1, weights.shape[2])

    def work(axis: str, size: int) -> Work:
        if axis == "sentences":
            rows = random_tokens(model, size, length)
            return lambda: target_states(model, rows, [length - 1] * size)
        if axis == "pairs":
            a, b = aligned_pairs(model, size, length)
            return lambda: swap_pairs(weights, a, b, direction, depth=len(weights.blocks))
        (text,) = random_tokens(model, 1, size)
        return lambda: trace_target(model, text, size - 1)

    measurements: list[tuple[object, ...]] = []
    for axis, counts in sizes.items():
        work(axis, counts[0])()
        for size in counts:
            megabytes, seconds = extra_memory(work(axis, size))
            measurements.append((shape, axis, size, seconds, megabytes))
    return measurements
