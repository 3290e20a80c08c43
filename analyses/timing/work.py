"""What is timed: models of a true shape with random weights, ids drawn at random, and the plain ways of doing the same.

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
# By name: the kind of config, the class, and what its config says beyond the usual.
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
    """A model of one of the SHAPES with random weights; the tokenizer is the embedded model's.

    sizes: what its config says otherwise, such as `n_layer=8`.
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
        with torch.device(device):  # random numbers are drawn where they are needed
            plain = getattr(transformers, model_class)._from_config(
                config, attn_implementation="eager"
            )
        plain = plain.to(device, dtype)
        bridge = TransformerBridge.boot_transformers(
            shape, hf_model=plain, tokenizer=tokenizer, device=device
        )
        return load(bridge.eval().requires_grad_(False))


def plain_model(model: Model) -> Any:
    """Hugging Face's model of the same shape without its head, with its fastest attention, sdpa: what a bare forward
    is.
    """
    from transformers import AutoModel

    with torch.random.fork_rng(devices=[]), quiet():
        config = copy.deepcopy(
            model.bridge.original_model.config
        )  # which the choice of attention is written into
        plain = AutoModel.from_config(config, attn_implementation="sdpa")
    plain.load_state_dict(dict(model.weights), strict=False, assign=True)
    return plain.to(model.device).eval().requires_grad_(False)


def bare_forward(plain: Any, rows: Sequence[Sequence[int]], *, batch: int) -> Tensor:
    """The last hidden state at the last position, batch by batch. `-> row d_model`"""
    found = []
    with torch.inference_mode():
        for start in range(0, len(rows), batch):
            ids = torch.tensor(rows[start : start + batch], device=plain.device)
            found.append(plain(ids).last_hidden_state[:, -1])
    return torch.cat(found)


def drawn(model: Model, rows: int, length: int, *, seed: int = 0) -> list[Tokens]:
    """Rows of random ids as tokens; only ids matter."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(model.config.d_vocab, (rows, length), generator=generator).tolist()
    return [tokens_of(row) for row in ids]


def tokens_of(ids: Sequence[int]) -> Tokens:
    """Ids as tokens of a character each."""
    spans = tuple((pos, pos + 1) for pos in range(len(ids)))
    return Tokens("·" * len(ids), tuple(ids), ("·",) * len(ids), spans, False)


def aligned_pairs(
    model: Model, pairs: int, length: int, *, seed: int = 0
) -> tuple[list[tuple[int, ...]], ...]:
    """Pairs that differ in one token, the cue, CUE_BEFORE places before the end, as in one frame.

    `-> rows of a, rows of b`
    """
    a = [tokens.ids for tokens in drawn(model, pairs, length, seed=seed)]
    cue = max(0, length - 1 - CUE_BEFORE)
    return a, [(*row[:cue], (row[cue] + 1) % model.config.d_vocab, *row[cue + 1 :]) for row in a]


def curve_sets(layers: int, heads: int, *, seed: int = 0) -> Tensor:
    """The sets of a whole curve: every nested set of an order of all heads, and random ones matched per layer in
    several sizes.

    `-> set layer head`
    """
    rng = np.random.default_rng(seed)
    order = [divmod(int(place), heads) for place in rng.permutation(layers * heads)]
    masks = [mask_of(order[:size], (layers, heads)) for size in range(1, len(order) + 1)]
    for size in np.geomspace(1, len(order) - 1, sets.SIZES).round().astype(int).tolist():
        masks += list(random_sets(mask_of(order[:size], (layers, heads)), sets.RANDOM_SETS, rng))
    return torch.from_numpy(np.array(masks))


def words_of(model: Model) -> list[str]:
    """The words that the tokenizer has as one token each inside a text, in the order of their ids."""
    pieces = sorted(model.tokenizer.get_vocab().items(), key=lambda item: item[1])
    words = [model.tokenizer.decode([token]) for _, token in pieces]
    plain = [word for word in words if word.startswith(" ") and word[1:].isalpha()]
    return [word for word in plain if len(model.tokenizer(word)["input_ids"]) == 1]


def drawn_texts(
    model: Model, pairs: int, length: int, *, seed: int = 0
) -> tuple[list[str], list[str]]:
    """Pairs as texts of `length` tokens, BOS among them, that differ in one word, CUE_BEFORE places before the end."""
    rng = np.random.default_rng(seed)
    words = words_of(model)
    a = [list(rng.choice(words, length - model.config.prepend_bos)) for _ in range(pairs)]
    b = [list(row) for row in a]
    for one, other in zip(a, b, strict=True):
        one[-1 - CUE_BEFORE], other[-1 - CUE_BEFORE] = rng.choice(words, 2, replace=False)
    return ["".join(row) for row in a], ["".join(row) for row in b]


def loop_over_heads(
    model: Model,
    pairs: Sequence[Sequence[Sequence[int]]],
    read: Tensor | Callable[[Tensor], Tensor],
    heads: Sequence[tuple[int, int]],
) -> Tensor:
    """The swap as others run it: one whole forward with a hook per head and direction, as `get_act_patch_attn_head_z`
    does.

    `pairs`: rows of a and rows of b · `read`: a direction, `d_model`, of all or `pair d_model`, along which the last
    block's output at the last position is read, or a function of the logits there, `row d_vocab -> row`. `-> pair
    recipient head`: how far what is read moves.
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
    for ids, own, donor in zip(both, unchanged, donors, strict=True):
        moved = []
        for layer, head in heads:
            seen: list[Tensor] = []

            def patch(
                z: Tensor, hook: Any, layer: int = layer, head: int = head, donor: Any = donor
            ) -> Tensor:
                z[:, -1, head] = donor[f"blocks.{layer}.attn.hook_z"][:, -1, head]
                return z

            def keep(resid: Tensor, hook: Any, seen: list[Tensor] = seen) -> None:
                seen.append(resid.clone())

            hooks = [(f"blocks.{layer}.attn.hook_z", patch), (last, keep)]
            with torch.inference_mode():
                logits = model.bridge.run_with_hooks(ids, fwd_hooks=hooks)
            moved.append(value(seen[0], logits) - own)
        sides.append(torch.stack(moved, dim=1))
    return torch.stack(sides, dim=1)


# Where the z of all heads of a block enter W_O, by the kind of config.
WRITERS = {"gpt2": "attn.c_proj", "llama": "self_attn.o_proj", "gpt_neox": "attention.dense"}


def attribution_by_autograd(
    plain: Any, pairs: Sequence[Sequence[Sequence[int]]], direction: Tensor, heads: int
) -> Tensor:
    """Attribution patching in its plainest form: one forward of both members of each pair and one backward, with
    Hugging Face's model and torch.autograd.

    `pairs`: rows of a and rows of b · read along a direction, `d_model`, in the last hidden state at the last
    position. `-> pair recipient layer head`: the gradient at the recipient times the change to the other member's z.
    """
    a, b = pairs
    blocks = plain.h if hasattr(plain, "h") else plain.layers
    kept: list[Tensor] = []

    def keep(module: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = args[0] if args[0].requires_grad else args[0].detach().requires_grad_()
        z.retain_grad()
        kept.append(z)
        return (z, *args[1:])

    writers = [block.get_submodule(WRITERS[plain.config.model_type]) for block in blocks]
    hooks = [writer.register_forward_pre_hook(keep) for writer in writers]
    try:
        ids = torch.tensor([*a, *b], device=plain.device)
        (plain(ids).last_hidden_state[:, -1] @ direction).sum().backward()
    finally:
        for hook in hooks:
            hook.remove()
    z = torch.stack([of_layer.detach()[:, -1] for of_layer in kept], 1)  # row layer (head d_head)
    gradient = torch.stack([of_layer.grad[:, -1] for of_layer in kept], 1)
    scores = (gradient * (z.roll(len(a), 0) - z)).unflatten(-1, (heads, -1)).sum(-1)
    return scores.unflatten(0, (2, -1)).transpose(0, 1)


def attribution_by_transformer_lens(
    model: Model, pairs: Sequence[Sequence[Sequence[int]]], tokens: tuple[int, int]
) -> list[Any]:
    """The attribution patching of TransformerLens of the difference of two logits, with each side as the clean one."""
    a, b = (torch.tensor(rows, device=model.device) for rows in pairs)
    one, other = tokens
    model.bridge.requires_grad_(True)  # its gradients start at the weights
    try:
        return [
            attribution_patch(
                model.bridge,
                clean,
                corrupt,
                lambda logits: logits[0, -1, one] - logits[0, -1, other],
                EdgeAttributionConfig(granularity="node"),
            )
            for clean, corrupt in ((a, b), (b, a))
        ]
    finally:
        model.bridge.requires_grad_(False)


def both_ways_by_gradients(
    model: Model, pairs: Sequence[Sequence[Sequence[int]]], direction: Tensor, *, steps: int
) -> Tensor:
    """The estimates behind `probe.shortcuts`, the states of both members included: attribution patching with no
    `steps`, else integrated gradients. Read along a direction, `d_model`, behind the last block. `-> pair recipient
    layer head`
    """
    a, b = pairs
    weights = read_weights(model)
    layers, length = len(weights.blocks), len(a[0])
    rows = [tokens_of(row) for row in (*a, *b)]
    z = target_states(model, rows, [length - 1] * len(rows)).z
    along = direction.expand(len(rows), layers, -1)
    found = attribute_heads(
        weights, [*a, *b], z.roll(len(a), 0), along, [layers] * layers, steps=steps
    )
    return found.unflatten(0, (2, -1)).transpose(0, 1)


def loop_over_edges(
    model: Model, pair: Sequence[Sequence[int]], direction: Tensor, edges: EdgeArray
) -> Tensor:
    """The total effect of edges from head to head as others run it: two whole forwards with hooks for each edge, one in
    which all but the sender write what they wrote, and one in which the receiver, there alone, gets the query, key or
    value of the first.

    `pair`: the two members, each the other's donor, the word their last token. `-> recipient edge`
    """
    ids = torch.tensor(pair, device=model.device)
    last = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
    _, own = model.bridge.run_with_cache(
        ids, names_filter=lambda name: name.endswith(("attn.hook_z", "hook_mlp_out", last))
    )
    moved, held = [], [name for name in own if name != last]

    def put(name: str, change: Callable[[Tensor], None]) -> tuple[str, Callable[..., Tensor]]:
        def hooked(tensor: Tensor, hook: Any) -> Tensor:
            tensor = own[name].clone() if name in held else tensor
            change(tensor)
            return tensor

        return name, hooked

    for edge in edges:
        seen = dict[str, Tensor]()
        note = {name: partial(_keep, seen, name) for name in ("taken", "end")}
        sender, receiver = int(edge["sender_head"]), int(edge["receiver_head"])
        at, to = int(edge["sender_pos"]) - 1, int(edge["receiver_pos"]) - 1  # counted from the end
        gives, takes = (
            f"blocks.{edge[f'{end}_layer']}.attn.hook_" for end in ("sender", "receiver")
        )
        taken, where = takes + str(edge["channel"])[0], to if edge["channel"] == "query" else at

        def donate(z: Tensor, at: int = at, head: int = sender) -> None:
            z[:, at, head] = z[:, at, head].flip(0)

        def receive(x: Tensor, at: int = where, head: int = receiver, seen: Any = seen) -> None:
            x[:, at, head] = seen["taken"][:, at, head]

        def only_there(
            z: Tensor, hook: Any, name: str = f"{takes}z", to: int = to, head: int = receiver
        ) -> Tensor:
            one = own[name].clone()
            one[:, to, head] = z[:, to, head]
            return one

        frozen = [put(name, donate if name == f"{gives}z" else lambda z: None) for name in held]
        with torch.inference_mode():
            model.bridge.run_with_hooks(ids, fwd_hooks=[*frozen, (taken, note["taken"])])
            model.bridge.run_with_hooks(
                ids, fwd_hooks=[put(taken, receive), (f"{takes}z", only_there), (last, note["end"])]
            )
        moved.append((seen["end"][:, -1] - own[last][:, -1]) @ direction)
    return torch.stack(moved, dim=1)


def _keep(seen: dict[str, Tensor], name: str, tensor: Tensor, hook: Any) -> None:
    seen[name] = tensor.clone()


def architecture(
    shape: str, *, pairs: int, length: int, sentences: int, runs: int
) -> tuple[pd.DataFrame, float]:
    """All swaps of a shape both ways, the bare forward of the pairs, a hooked forward per head, and reading beside a
    bare forward.

    `-> work run seconds`, and how often the hooked forwards, run for one head of every third layer, stand in all of
    them, with two traces.
    """
    model = shaped(shape)
    weights, plain = read_weights(model), plain_model(model)
    layers, heads, d_model, _ = weights.shape
    a, b = aligned_pairs(model, pairs, length)
    direction = torch.full((d_model,), d_model**-0.5)
    sample = [(layer, layer % heads) for layer in range(0, layers, 3)]
    read = drawn(model, sentences, length)
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
    """A text of `length` tokens kept to its last position, beside everything cached: medians of extra MiB and of
    seconds of both.

    `sources`: MiB of taking ΔE of every head apart by source token there, the values that it needs included.
    """
    (text,) = drawn(model, 1, length)
    ids = torch.tensor([text.ids], device=model.device)
    held: list[TargetTrace] = []

    def cache() -> None:
        with torch.inference_mode():
            model.bridge.run_with_cache(ids)

    def alone(work: Work) -> tuple[float, float]:
        with (
            torch.inference_mode()
        ):  # what the bridge keeps of its last run is let go before, not counted against the next
            model.bridge(ids[:, :2])
        held.clear()
        return extra_memory(work)

    turns = [
        (*alone(cache), *alone(lambda: held.append(trace_target(model, text, length - 1))))
        for _ in range(runs + 1)
    ]
    kept = held[-1]
    layers, heads, *_ = kept.weights.shape
    places = [(layer, head) for layer in range(layers) for head in range(heads)]
    taken, _ = extra_memory(
        lambda: [kept.delta_e_by_source(*place).norm(dim=-1) for place in places]
    )
    medians = dict(
        zip(
            ("cached", "cached_seconds", "traced", "traced_seconds"),
            np.median(turns[1:], axis=0),
            strict=True,
        )
    )
    return {name: float(value) for name, value in medians.items()} | {
        "sources": taken + kept.v.nbytes / 2**20
    }


def start_up(*, runs: int) -> dict[str, float]:
    """Median seconds of `import probe` and of `probe --help`, each in a Python of its own."""

    def command(*arguments: str) -> Work:
        return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    works = {
        "import probe": command("-c", "import probe"),
        "probe --help": command("-m", "probe", "--help"),
    }
    seconds = interleave(works, runs=runs).groupby("work")["seconds"].median()
    return {name: float(seconds[name]) for name in works}


def growth(*, length: int, quick: bool) -> pd.DataFrame:
    """Seconds and extra MiB of reading sentences, swapping pairs and tracing one text, by shape:

    `shape axis size seconds megabytes`.
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
            rows = drawn(model, size, length)
            return lambda: target_states(model, rows, [length - 1] * size)
        if axis == "pairs":
            a, b = aligned_pairs(model, size, length)
            return lambda: swap_pairs(weights, a, b, direction, depth=len(weights.blocks))
        (text,) = drawn(model, 1, size)
        return lambda: trace_target(model, text, size - 1)

    found: list[tuple[object, ...]] = []
    for axis, counts in sizes.items():
        work(axis, counts[0])()
        for size in counts:
            megabytes, seconds = extra_memory(work(axis, size))
            found.append((shape, axis, size, seconds, megabytes))
    return found
