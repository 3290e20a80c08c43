"""The certificate: every quantity of the hooked model compared with the same quantity computed
from the raw weights.

One side is TransformerLens's hooks on the running model. The other side is `probe.model.forward` in
float64, on the checkpoint's tensors. Each layer starts from the stream that the hooks recorded at
its entrance. That stream is compared with the end of the layer before, and for the first layer with
the embedding of the token ids. So if all rows hold, every number of the stream follows from the
ids. Errors are relative to the scale (largest absolute value) of their tensor: at most 1e-5 for a
float32 model, 1e-12 for a float64 one. If the products that all numbers of a tensor sum cancel, the
scale is a hundredth of their size. A hook that holds another quantity is replaced, and its row
states this. The logits are also compared with plain Hugging Face.

A bfloat16 number has 8 significant bits, so a rounding has a relative error of up to 2^-8. For
bfloat16, every quantity is computed in float64 from the bfloat16 weights and from the hooked
quantities just before it: x from E, Q from x, scores from Q and K, and so on. At most eight
roundings separate the two (a gated MLP: its norm, gate and up, activation, product, out, norm), so
a row may differ by 8 x 2^-8 = 3 %. Two rows have a wider tolerance. If no hook holds the scores,
the pattern is computed from Q and K, and an error e of a score is a factor exp(e) in the pattern:
the tolerance is multiplied by the largest score. The logits of plain Hugging Face pass through
every block in another implementation, and each block rounds the stream twice: 2 x layers + 8
roundings.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.errors import CrossCheckError, InputError
from probe.model import attention as formulas
from probe.model import forward
from probe.model.agreement import COARSE, ROUNDING, STEPS, rounded_through
from probe.model.architectures.family import Attention, Family
from probe.model.bridge import plain_model
from probe.model.hooks import HookedRun, read
from probe.model.load import ModelSource, as_model
from probe.model.model import Config, Model
from probe.model.tokens import target_tokens, tokenize
from probe.model.weights import Block, Weights

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: STEPS * ROUNDING}
DEFAULT_TEXTS = ("Make a deposit at the bank", "A fluffy blue creature roamed the verdant forest")
MASKED = -1e30
ROUNDED = 1e-6  # of a softmax in float32: a few times its rounding of 1.2e-7
# Of a recurrence in float32, whose sums run over the text. Hugging Face's two forms of the gated
# delta rule, for whole texts and for one more token, differ by 1e-6.
RECURRENT = 3e-6
FLOAT32_SOFTMAX = "the model's own softmax is in float32"
FLOAT32_ROUTER = "the model's own router is in float32"
FLOAT32_RECURRENCE = "the library's module may compute in float32"
FLOAT32_SCORES = "recomputed from q.k in float32, as the model's own"
FROM_SCORES = "as uncertain as its scores, which no hook holds"
THROUGH_ALL = "two ways through all blocks, both rounded"
PLAIN_ROUNDED = "Hugging Face and the hooked model do not round to float32 in the same place"
EXACT = torch.float64
# The scale of a tensor is at least this share of the size of its products, so that a float32 number
# may be off by its rounding, 1e-7 of that size. In SmolLM2 the largest number of every tensor is at
# least .0098 of it.
LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Row:
    """One comparison, over all texts: `error` = largest |hooked - scratch| / `scale`.

    layer: None for the whole model
    stack: distinguishes the attentions of an encoder-decoder
    note: which hook was replaced and how, or why the tolerance is wider
    """

    layer: int | None
    quantity: str
    formula: str
    error: float
    scale: float
    tolerance: float
    stack: str = ""
    note: str = ""

    @property
    def where(self) -> str:
        """What is compared: "layer 3", "cross layer 0", "the whole model"."""
        if self.layer is None:
            return "the whole model"
        return f"{self.stack} layer {self.layer}".strip()

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # False for NaN, too

    @property
    def badness(self) -> float:
        """The error; infinity for NaN."""
        return math.inf if math.isnan(self.error) else self.error


@dataclass(frozen=True)
class Certificate:
    """All rows of a check, in the order of the computation."""

    model_name: str
    dtype: str
    texts: tuple[str, ...]
    rows: tuple[Row, ...]

    def __repr__(self) -> str:
        return f"<Certificate of {self.summary}>"

    @property
    def summary(self) -> str:
        """One line with the model, the number of rows that hold, and the worst row."""
        held = f"{sum(row.ok for row in self.rows)} of {len(self.rows)} rows hold"
        worst = f"{self.worst.error:.1e} of its scale ({self.worst.quantity} of {self.worst.where})"
        return f"{self.model_name} ({self.dtype}): {held}; the largest difference is {worst}"

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    @property
    def worst(self) -> Row:
        """The row with the largest error."""
        return max(self.rows, key=lambda row: row.badness)

    def require(self) -> "Certificate":
        """The certificate itself. Raises CrossCheckError for the first row that does not hold."""
        for row in self.rows:
            if not row.ok:
                raise CrossCheckError(
                    f"Cannot certify {self.model_name}: {row.quantity} of {row.where} is off by "
                    f"{row.error:.1e} of its scale, expected at most "
                    f"{row.tolerance:.0e}. No result is reported. Run `probe check` on this "
                    "model to see every row."
                )
        return self


def certify(model: ModelSource, texts: Sequence[str] | str = DEFAULT_TEXTS) -> Certificate:
    """The comparison of the hooked model with the forward from scratch: the worst error over all
    texts, by layer and quantity.

    An encoder-decoder reads each text as source and as target. A failing row does not raise; see
    `Certificate.require`. Raises InputError for a text that the model cannot read.

    Example:
        >>> certificate = probe.certify("tiny-senses")
        >>> certificate.ok, certificate.worst.tolerance
        (True, 1e-05)
    """
    model = as_model(model)
    if isinstance(texts, str):
        texts = [texts]
    if not texts:
        raise InputError(
            f"Cannot check {model.name} against its weights: got texts = {texts!r}, expected at "
            "least one text. Give some, or omit it for two short ones."
        )
    return _certificate(model, texts, [(text, text) for text in texts])


def certify_pair(model: Model, source: str, target: str) -> Certificate:
    """The certificate of an encoder-decoder on these two texts. Raises InputError if it cannot
    read them.
    """
    return _certificate(model, (source, target), [(source, target)])


def _certificate(
    model: Model, texts: Sequence[str], pairs: Sequence[tuple[str, str]]
) -> Certificate:
    plain = plain_model(model) if model.config.has_lm_head else None
    with torch.inference_mode():
        runs = [list(_rows(model, source, target, plain)) for source, target in pairs]
    rows = tuple(max(same_row, key=lambda row: row.badness) for same_row in zip(*runs, strict=True))
    return Certificate(model.name, str(model.dtype).removeprefix("torch."), tuple(texts), rows)


def _row(
    stack: Weights,
    layer: int | None,
    labels: tuple[str, str],
    hooked: Tensor,
    scratch: Tensor,
    *,
    note: str = "",
    tolerance: float | None = None,
    size: float = 0.0,
) -> Row:
    """One comparison.

    labels: the quantity and its formula
    tolerance: a wider tolerance than the dtype's
    size: of the products that each number sums; if all of them cancel, what is left is rounding
        error
    """
    error, scale = _difference(hooked, scratch, LEAST_SHARE * size)
    name = "" if layer is None else stack.attention.name
    return Row(layer, *labels, error, scale, tolerance or TOLERANCE[stack.dtype], name, note)


def _difference(hooked: Tensor, scratch: Tensor, least: float = 0.0) -> tuple[float, float]:
    """The largest error relative to the scale, and the scale. Entries that both sides mask are
    ignored.

    least: the smallest scale
    """
    hooked = hooked.double()
    scratch = scratch.double()
    is_masked = scratch < MASKED
    if not torch.equal(hooked < MASKED, is_masked):
        return math.inf, 1.0
    hooked = hooked.masked_fill(is_masked, 0)
    scratch = scratch.masked_fill(is_masked, 0)
    scale = max(scratch.abs().max().item(), least)
    error = (hooked - scratch).abs().max().item()
    if not scale:
        return (math.inf if error else 0.0), scale
    return error / scale, scale


def _rows(model: Model, text: str, answer: str, plain: torch.nn.Module | None) -> Iterator[Row]:
    """Every row of one text (and its target), in the order of the computation, on the CPU in
    float64.
    """
    config = model.config
    ids = tokenize(model, text).ids
    target = target_tokens(model, answer).ids if config.start_token is not None else None
    run = read(model, ids, target)
    stacks = {name: stack.on("cpu") for name, stack in run.stacks.items()}
    ids_of = {"": ids, "encoder": ids, "decoder": target or ()}
    for name, stack in stacks.items():
        if name == "cross":
            entering = _between(stacks, run)
        else:
            entering = _stream(stack, run, ids_of[name])
        bias = forward.position_bias(stack, run.tensors[name]["q"].shape[-2])
        for layer, stored in enumerate(stack.blocks):
            block = stored.to(EXACT, "cpu")
            yield from entering[layer]
            yield from _attention_rows(model, run, stack, layer, block=block, bias=bias)
            if block.has_mlp:
                yield from _mlp_rows(model, run, stack, layer, block)
    last_stack = stacks["decoder" if config.family.kind == "encoder-decoder" else ""]
    logits = None if plain is None else _plain_logits(plain, ids, target)
    yield from _logits_rows(model, run, last_stack, logits)


def _logits_rows(
    model: Model, run: HookedRun, stack: Weights, plain_logits: Tensor | None
) -> Iterator[Row]:
    """The logits compared with the unembedding of the last stream, and with plain Hugging
    Face's.
    """
    if model.config.has_lm_head:
        resid_post = run.tensors[stack.attention.name]["resid_post"][-1].to(EXACT)
        labels = ("logits", "unembedding of the last stream")
        yield _row(stack, None, labels, run.logits, forward.unembed(stack, resid_post))
    if plain_logits is not None:
        labels = ("logits, Hugging Face", "hooked against the plain model")
        note = ""
        tolerance = None
        if model.config.family.adapter_rounds_differently and model.dtype == EXACT:
            note = PLAIN_ROUNDED
            tolerance = ROUNDED
        if model.dtype == COARSE:
            note = THROUGH_ALL
            tolerance = rounded_through(model.config.n_layers + model.config.n_decoder_layers)
        yield _row(stack, None, labels, run.logits, plain_logits, note=note, tolerance=tolerance)


def _plain_logits(
    plain: torch.nn.Module, ids: Sequence[int], target: Sequence[int] | None
) -> Tensor:
    device = next(plain.parameters()).device
    inputs = {"input_ids": torch.tensor([list(ids)], device=device)}
    if target is not None:
        inputs["decoder_input_ids"] = torch.tensor([list(target)], device=device)
    return plain(**inputs).logits[0].cpu()


def _stream(stack: Weights, run: HookedRun, ids: Sequence[int]) -> list[list[Row]]:
    """The entering stream of each layer, compared with the embedding or with the end of the
    layer before.
    """
    tensors = run.tensors[stack.attention.name]
    embeddings = forward.embed(stack, torch.tensor(ids), EXACT)
    labels = ("resid_pre", "embedding of the tokens")
    rows = [[_row(stack, 0, labels, tensors["resid_pre"][0], embeddings)]]
    labels = ("resid_pre", "resid_post of the layer before")
    layers = zip(tensors["resid_pre"][1:], tensors["resid_post"], strict=False)
    for layer, (resid_pre, resid_post) in enumerate(layers, start=1):
        rows.append([_row(stack, layer, labels, resid_pre, resid_post)])
    return rows


def _between(stacks: Mapping[str, Weights], run: HookedRun) -> list[list[Row]]:
    """The inputs of each cross-attention: the decoder's stream after its self-attention, and the
    encoder's output.
    """
    tensors = run.tensors["cross"]
    cross = stacks["cross"]
    encoder_output = run.tensors["encoder"]["resid_post"][-1].to(EXACT)
    memory = forward.final_norm(stacks["encoder"], encoder_output)
    of_stream = ("resid_pre", "the decoder's resid_mid")
    of_memory = ("memory", "what left the encoder")
    rows = []
    for layer, resid_mid in enumerate(run.tensors["decoder"]["resid_mid"]):
        entering = _row(cross, layer, of_stream, tensors["resid_pre"][layer], resid_mid)
        rows.append([entering, _row(cross, layer, of_memory, tensors["memory"][layer], memory)])
    return rows


def _attention_rows(
    model: Model,
    run: HookedRun,
    stack: Weights,
    layer: int,
    *,
    block: Block,
    bias: Tensor | None,
) -> Iterator[Row]:
    attention = stack.attention
    in_float32 = stack.config.family.in_float32
    hooked = {name: tensor[layer] for name, tensor in run.tensors[attention.name].items()}
    if block.mixer is None:
        hooked["delta_e"] = _own_writes(model, hooked["z"], attention, layer)
    # For a float64 model, the model's code rounds its softmax to float32, and the formulas do not.
    rounds_softmax = "softmax" in in_float32 and model.dtype == EXACT
    # A module may compute in float32, and in another order for whole texts.
    by_recurrence = block.mixer is not None and model.dtype == EXACT
    if model.dtype == COARSE:
        steps = _each_step(stack, block, hooked, bias)
    else:
        steps = forward.attend(
            stack,
            block,
            hooked["resid_pre"].to(EXACT),
            bias=bias,
            memory=hooked["memory"].to(EXACT) if "memory" in hooked else None,
            pattern=hooked["pattern"] if rounds_softmax else None,
        )
    sizes = {}
    if block.mixer is None:
        x = steps["x"].to(EXACT)
        sizes = _sizes(block, x, hooked["memory"].to(EXACT) if "memory" in hooked else x)
    for name, formula in formulas_of(attention, stack.config, block).items():
        note = _replacement_note(attention, name)
        tolerance = None
        if rounds_softmax and (name == "pattern" or name in in_float32):
            note = FLOAT32_SOFTMAX if name == "pattern" else FLOAT32_SCORES
            tolerance = ROUNDED
        if by_recurrence and name != "x":
            note = FLOAT32_RECURRENCE
            tolerance = RECURRENT
        if model.dtype == COARSE and name == "pattern" and "scores" in attention.unreliable_hooks:
            scores = steps["scores"].masked_fill(steps["scores"] < MASKED, 0)
            note = FROM_SCORES
            tolerance = TOLERANCE[COARSE] * max(1.0, float(scores.abs().max()))
        yield _row(
            stack,
            layer,
            (name, formula),
            hooked[name],
            steps[name],
            note=note,
            tolerance=tolerance,
            size=sizes.get(name, 0.0),
        )


def _sizes(block: Block, x: Tensor, source: Tensor) -> dict[str, float]:
    """The size of the products that each quantity of an attention sums: |x| times the longest
    column of its matrix.

    x: the input of queries, `pos d_model`
    source: the input of keys and values, `key_pos d_model`
    """
    longest = float(source.norm(dim=-1).max())
    size_v = longest * _longest_column(block.w_v)
    size_out = size_v * _longest_column(block.w_o)
    return {
        "q": float(x.norm(dim=-1).max()) * _longest_column(block.w_q),
        "k": longest * _longest_column(block.w_k),
        "v": size_v,
        "scores": 1.0,  # attention depends on differences of scores
        "z": size_v,
        "delta_e": size_out,
        "attn_out": size_out,
    }


def _longest_column(weight: Tensor) -> float:
    """The length of the longest column of the matrices of all heads. `head ... ...`"""
    return float(weight.norm(dim=1).max())


def _each_step(
    stack: Weights, block: Block, hooked: Mapping[str, Tensor], bias: Tensor | None
) -> dict[str, Tensor]:
    """The quantities of an attention in float64, each from the hooked quantities just before it,
    so that roundings do not accumulate.
    """
    config = stack.config
    exact = {name: tensor.to(EXACT) for name, tensor in hooked.items()}
    x = forward.attention_input(block, exact["resid_pre"], config)
    if block.mixer is not None:
        write = block.mixer(exact["x"]).unsqueeze(-3)
        output = forward.attention_output(block, exact["resid_pre"], write, config)
        return {"x": x} | output
    q, k, v = forward.project_qkv(block, exact["x"], exact.get("memory", exact["x"]), config)
    scores = forward.score(stack, block, exact["q"], exact["k"], bias)
    is_seen = "scores" not in stack.attention.unreliable_hooks
    pattern = forward.softmax(exact["scores"] if is_seen else scores, block, config)
    read = formulas.mix(exact["pattern"], exact["v"])
    z = formulas.gated(read, exact["x"], block.w_head_gate)
    steps = {"x": x, "q": q, "k": k, "v": v, "scores": scores, "pattern": pattern, "z": z}
    return steps | forward.attention_output(block, exact["resid_pre"], exact["z"], config)


def _replacement_note(attention: Attention, quantity: str) -> str:
    """What the trace holds instead of an unreliable hook; empty if the hook holds the quantity."""
    replacement = attention.unreliable_hooks.get(quantity)
    return "" if replacement is None else f"replaced: {replacement.traced_instead}"


def _mlp_rows(
    model: Model, run: HookedRun, stack: Weights, layer: int, block: Block
) -> Iterator[Row]:
    name = stack.attention.name
    hooked = run.tensors[name]
    # A decoder's MLP comes after its cross-attention.
    resid_mid = run.tensors["cross" if name == "decoder" else name]["resid_mid"][layer]
    resid_pre = hooked["resid_pre"][layer]
    steps = forward.mlp(block, resid_mid.to(EXACT), resid_pre.to(EXACT), stack.config)
    mlp = "Σ share of the expert · expert" if block.experts else "MLP"
    formulas = {"mlp_out": mlp, "resid_post": _summed("E′", "MLP", stack.config.family)}
    for quantity, tensor in steps.items():
        labels = (quantity, formulas[quantity])
        note = _replacement_note(stack.attention, quantity)
        tolerance = None
        if "router" in stack.config.family.in_float32 and model.dtype == EXACT:
            note = FLOAT32_ROUTER
            tolerance = ROUNDED
        hooked_quantity = hooked[quantity][layer]
        yield _row(stack, layer, labels, hooked_quantity, tensor, note=note, tolerance=tolerance)


def _own_writes(model: Model, z: Tensor, attention: Attention, layer: int) -> Tensor:
    """ΔE of every head from the running model's output projection, applied to one head at a
    time.

    `-> head pos d_model`

    With the raw W_O on both sides, a wrong order of heads would go unnoticed.
    """
    z = z.to(model.device)
    one_head = torch.eye(len(z), dtype=z.dtype, device=z.device)[:, None, :, None]
    single = one_head * z.transpose(0, 1)  # head pos head d_head, all heads but one 0
    block = getattr(model.bridge, attention.blocks)[layer]
    project = getattr(block, attention.hooks["q"].partition(".")[0]).o
    without_z = project(torch.zeros_like(single).flatten(2))  # only its bias
    return (project(single.flatten(2)) - without_z).cpu() * model.config.write_scale


def formulas_of(attention: Attention, config: Config, block: Block) -> dict[str, str]:
    """The formula of each quantity of a layer's attention, or of its mixer, in the order of the
    computation.
    """
    family = config.family
    if block.mixer is not None:
        return {
            "x": f"{family.norm}(E)" if family.norm_first else "E",
            "attn_out": f"library's module, {type(block.mixer.module).__name__}(x)",
            "resid_mid": _summed("E", "attn_out", family),
        }
    read = "x" if attention.name != "cross" else "memory"
    stored = {"q": block.b_q, "k": block.b_k, "v": block.b_v, "o": block.b_o}
    bias = {role: "" if b is None else f" + b_{role.upper()}" for role, b in stored.items()}
    return {
        "x": f"{family.norm}(E)" if forward.norms_input(block, config) else "E",
        "q": f"x W_Q{bias['q']}",
        "k": f"{read} W_K{bias['k']}",
        "v": f"{read} W_V{bias['v']}",
        "scores": _scores_formula(attention, config),
        "pattern": "softmax(scores, sink)" if "sinks" in attention.parts else "softmax(scores)",
        "z": "sigmoid(x W_gate) * A V" if family.gated_attention else "A V",
        "delta_e": "z W_O, every head",
        "attn_out": f"Σ ΔE{bias['o']}",
        "resid_mid": _summed("E", f"Σ ΔE{bias['o']}", family),
    }


def _scores_formula(attention: Attention, config: Config) -> str:
    family = config.family
    scores = "Q Kᵀ"
    if family.divides_scores:
        scores += f" / √{config.query_scalar:g}" if config.query_scalar else " / √d_head"
    if config.scores_by_layer:
        scores += " / (layer + 1)"
    if family.positions == "rotary":
        scores = f"rotated {scores}"
    if "norm_q" in attention.parts:
        scores = f"normed, {scores}"
    if config.attn_logit_softcapping:
        scores = f"capped({scores})"
    if family.positions in ("relative bias", "alibi") and attention.name != "cross":
        scores += " + bias"
    return f"{scores}, masked" if attention.causal else scores


def _summed(stream: str, write: str, family: Family) -> str:
    """The formula of a block's addition to the stream, with its norms."""
    if family.norm_after_write:
        write = f"{family.norm}({write})"
    total = f"{stream} + {write}"
    return f"{family.norm}({total})" if family.norm_after_sum else total
