"""The certificate: every quantity of the hooked model compared with the same quantity computed
from the raw weights, by the functions that swaps run.

One side is TransformerLens's hooks on the running model. The other side is a block
(`probe.model.blocks`) on the checkpoint's tensors, in float64. Each layer starts from the stream
that the hooks recorded at its entrance. That stream is compared with the end of the layer before,
and for the first layer with the embedding of the token ids. So if all rows hold, every number of
the stream follows from the ids.

Three more rows are about the way in which swaps run. `block` is the end of a block, run on the
whole text by the loop of all swaps (`probe.model.variants`), once in float64 and once in the
model's dtype. `block, kept keys` is the same at the last position, and at the last two, against the
keys and values of the tokens before. `swap of L0H0` is a swap: z of one head at one word is that of
another text, once by a hook and once as a variant of a run, and the stream at the word is compared
after every block. A routed model in bfloat16 has none of these rows: after other roundings, a
router may choose other experts.

Errors are relative to the scale (largest absolute value) of their tensor: at most 1e-5 for a
float32 model, 1e-12 for a float64 one. If the products that all numbers of a tensor sum cancel, the
scale is a hundredth of their size. A hook that holds another quantity is replaced, and its row
states this. The logits are also compared with plain Hugging Face.

A bfloat16 number has 8 significant bits, so a rounding has a relative error of up to 2^-8. For
bfloat16, every quantity is computed in float64 from the bfloat16 weights and from the hooked
quantities just before it: x from E, Q from x, scores from Q and K, and so on. At most eight
roundings separate the two (a gated MLP: its norm, gate and up, activation, product, out, norm), so
a row may differ by 8 x 2^-8 = 3 %. Some rows have a wider tolerance. If no hook holds the scores,
the pattern is computed from Q and K, and an error e of a score is a factor exp(e) in the pattern:
the tolerance is multiplied by the largest score. The logits of plain Hugging Face pass through
every block in another implementation, and each block rounds the stream twice: 2 x layers + 8
roundings. A whole block and a swap are rounded on both sides: twice as many.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from probe.errors import CrossCheckError, InputError
from probe.model import attention as formulas
from probe.model import blocks, forward, hooks, variants
from probe.model.agreement import COARSE, ROUNDING, STEPS, rounded_through
from probe.model.architectures.family import Attention, Family
from probe.model.blocks import Projected
from probe.model.bridge import plain_model
from probe.model.hooks import HookedRun
from probe.model.load import ModelSource, as_model
from probe.model.model import Config, Model
from probe.model.tokens import target_tokens, tokenize
from probe.model.variants import Cross, Edits, Run, TargetText, Z
from probe.model.weights import Block, Weights, read_stacks

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
FLOAT32_STEPS = "the model's own code computes some steps in float32"
FROM_SCORES = "as uncertain as its scores, which no hook holds"
EACH_ROUNDED = "two ways, each rounded at every step"
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
        return _worst(self.rows)

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
    """The comparison of the hooked model with the blocks that swaps run: the worst error over all
    texts, by layer and quantity, and two swaps.

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
        swaps = [] if _may_route_otherwise(model) else [*_swap_rows(model, pairs)]
    rows = (*map(_worst, zip(*runs, strict=True)), *swaps)
    return Certificate(model.name, str(model.dtype).removeprefix("torch."), tuple(texts), rows)


def _worst(rows: Iterable[Row]) -> Row:
    """The row with the largest error."""
    return max(rows, key=lambda row: row.badness)


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
    run = hooks.read(model, ids, target)
    stacks = {name: stack.on("cpu") for name, stack in run.stacks.items()}
    ids_of = {"": ids, "encoder": ids, "decoder": target or ()}
    as_swaps: list[Row] = []
    for name, stack in stacks.items():
        if name == "cross":
            entering = _between(stacks, run)
        else:
            entering = _stream(stack, run, ids_of[name])
        for layer in range(len(stack.blocks)):
            exact = _in_float64(stack, layer)
            yield from entering[layer]
            yield from _attention_rows(model, run, exact, layer)
            if exact.blocks[0].has_mlp:
                yield from _mlp_rows(model, run, exact, layer)
                if not _may_route_otherwise(model):
                    as_swaps += _block_rows(model, run, exact, layer)
    yield from as_swaps
    last_stack = stacks["decoder" if config.family.kind == "encoder-decoder" else ""]
    logits = None if plain is None else _plain_logits(plain, ids, target)
    yield from _logits_rows(model, run, last_stack, logits)


def _in_float64(stack: Weights, layer: int) -> Weights:
    """A stack of one layer alone, in float64 on the CPU."""
    return replace(stack, blocks=(stack.blocks[layer].to(EXACT, "cpu"),))


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
    embeddings = forward.embed(stack, torch.tensor(ids), dtype=EXACT)
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


def _attention_rows(model: Model, run: HookedRun, exact: Weights, layer: int) -> Iterator[Row]:
    """The rows of one attention.

    exact: the stack of this layer alone, in float64
    """
    attention = exact.attention
    config = exact.config
    [block] = exact.blocks
    hooked = {name: tensor[layer] for name, tensor in run.tensors[attention.name].items()}
    if block.mixer is None:
        hooked["delta_e"] = _own_writes(model, hooked["z"], attention, layer)
    is_coarse = model.dtype == COARSE
    # For a float64 model, the model's code rounds its softmax to float32, and a block does not.
    rounds_softmax = "softmax" in config.family.in_float32 and model.dtype == EXACT
    # A module may compute in float32, and in another order for whole texts.
    by_recurrence = block.mixer is not None and model.dtype == EXACT
    steps = _attention_steps(exact, hooked, links=is_coarse, rounded=is_coarse or rounds_softmax)
    sizes = {}
    if block.mixer is None:
        source = hooked["memory"].to(EXACT) if "memory" in hooked else steps["x"]
        sizes = _sizes(block, steps["x"], source)
    for name, formula in formulas_of(attention, config, block).items():
        note = _replacement_note(attention, name)
        tolerance = None
        if rounds_softmax and name == "pattern":
            note = FLOAT32_SOFTMAX
            tolerance = ROUNDED
        if by_recurrence and name != "x":
            note = FLOAT32_RECURRENCE
            tolerance = RECURRENT
        if is_coarse and name == "pattern" and "scores" in attention.unreliable_hooks:
            scores = steps["scores"].masked_fill(steps["scores"] < MASKED, 0)
            note = FROM_SCORES
            tolerance = TOLERANCE[COARSE] * max(1.0, float(scores.abs().max()))
        yield _row(
            run.stacks[attention.name],
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


def _attention_steps(
    exact: Weights, hooked: Mapping[str, Tensor], *, links: bool, rounded: bool
) -> dict[str, Tensor]:
    """The quantities of an attention in float64, from the stream that enters.

    exact: the stack of this layer alone, in float64
    links: start each quantity from the hooked ones just before it, so that the roundings of
        bfloat16 do not accumulate
    rounded: start z from the hooked pattern, so that its rounding has no further effect
    """
    config = exact.config
    [block] = exact.blocks
    wide = {name: tensor.to(EXACT) for name, tensor in hooked.items()}
    resid_pre = wide["resid_pre"]
    steps: dict[str, Tensor] = {}

    def step(name: str, computed: Tensor) -> Tensor:
        """The value that the next quantity starts from."""
        steps[name] = computed
        return wide[name] if links else computed

    x = step("x", blocks.attention_input(block, resid_pre, config))
    if block.mixer is not None:
        z = blocks.mix_variants(block, x[None, None], None)[0, 0]
    else:
        q, k, v, gate = _projections(exact, x, wide.get("memory"))
        q, k, v = step("q", q), step("k", k), step("v", v)
        terms = blocks.position_terms(exact, k.shape[-2])
        scores = step("scores", blocks.score(exact, block, q, k, terms))
        if "scores" in exact.attention.unreliable_hooks:  # the hooked ones are computed here, too
            scores = steps["scores"]
        step("pattern", blocks.softmax(scores))
        if rounded:
            z = blocks.gated(formulas.mix(wide["pattern"], v), gate)
        elif "memory" in wide:
            z = blocks.cross_attend(exact, block, resid_pre[None, None], (k[None], v[None]))
            z = z[0, 0].transpose(0, 1)
        else:
            pos = torch.arange(len(x))[None]
            projected = blocks.project(exact, block, resid_pre[None], terms, pos)
            [z] = blocks.attend(exact, block, projected, terms)
        z = step("z", z)
        steps["delta_e"] = formulas.write(z, block.w_o)
        z = z.transpose(0, 1)
    steps["attn_out"] = blocks.merge_heads(block, z)
    steps["resid_mid"] = blocks.after_attention(exact, block, resid_pre, z)
    return steps


def _projections(exact: Weights, x: Tensor, memory: Tensor | None) -> Projected:
    """Queries, keys and values of an attention, or of cross-attention, before norms and rotation;
    keys and values repeated for the heads that share them.

    `head pos d_head` each
    """
    [block] = exact.blocks
    if memory is not None:
        keys_values = blocks.memory_read(block, memory, exact.config)
        return Projected(blocks.cross_queries(block, x, exact.config), *keys_values)
    q, k, v, gate = blocks.read_input(block, x, exact.config)
    return Projected(q, formulas.repeat_kv(k, len(q)), formulas.repeat_kv(v, len(q)), gate)


def _replacement_note(attention: Attention, quantity: str) -> str:
    """What the trace holds instead of an unreliable hook; empty if the hook holds the quantity."""
    replacement = attention.unreliable_hooks.get(quantity)
    return "" if replacement is None else f"replaced: {replacement.traced_instead}"


def _mlp_rows(model: Model, run: HookedRun, exact: Weights, layer: int) -> Iterator[Row]:
    """The rows of one MLP.

    exact: the stack of this layer alone, in float64
    """
    name = exact.attention.name
    family = exact.config.family
    [block] = exact.blocks
    hooked = run.tensors[name]
    # A decoder's MLP comes after its cross-attention.
    resid_mid = run.tensors["cross" if name == "decoder" else name]["resid_mid"][layer].to(EXACT)
    resid_pre = hooked["resid_pre"][layer].to(EXACT)
    read = resid_pre if family.parallel_attn_mlp else resid_mid
    hidden = blocks.activate(exact, block, read)
    computed = {
        "mlp_out": blocks.mlp_writer(exact, block).write(hidden),
        "resid_post": blocks.after_mlp(exact, block, resid_mid, hidden),
    }
    mlp = "MLP"
    if block.experts is not None:
        mlp = f"library's module, {type(block.experts.module).__name__}(x)"
    labels = {"mlp_out": mlp, "resid_post": _summed("E′", "MLP", family)}
    note = ""
    tolerance = None
    if "router" in family.in_float32 and model.dtype == EXACT:
        note = FLOAT32_ROUTER
        tolerance = ROUNDED
    for quantity, tensor in computed.items():
        yield _row(
            run.stacks[name],
            layer,
            (quantity, labels[quantity]),
            hooked[quantity][layer],
            tensor,
            note=note or _replacement_note(exact.attention, quantity),
            tolerance=tolerance,
        )


# --- as swaps run ---------------------------------------------------------------------------------


def _block_rows(model: Model, run: HookedRun, exact: Weights, layer: int) -> Iterator[Row]:
    """The end of a block as swaps run it: on the whole text, and at the last position and the last
    two against kept keys and values. The larger error of a run in float64 and of one in the model's
    dtype.

    exact: the stack of this layer alone, in float64
    """
    name = exact.attention.name
    stack = run.stacks[name]
    alone = [exact, replace(stack, blocks=(stack.blocks[layer],))]
    across: list[Weights | None] = [None, None]
    if name == "decoder":
        cross = run.stacks["cross"]
        across = [_in_float64(cross, layer), replace(cross, blocks=(cross.blocks[layer],))]
    resid_pre = run.tensors[name]["resid_pre"][layer]
    resid_post = run.tensors[name]["resid_post"][layer]
    n = len(resid_pre)
    lives = {"block": [n]}
    if stack.causal and n > 1:
        lives["block, kept keys"] = [live for live in (1, 2) if live < n]
    labels = {
        "block": "E″ from E",
        "block, kept keys": "E″ at the end, from kept keys",
    }
    tolerance, note = _through(model, 1)
    runs = [_run_of_block(run, *each, layer, n) for each in zip(alone, across, strict=True)]
    for quantity, of_row in lives.items():
        yield _worst(
            _row(
                stack,
                layer,
                (quantity, labels[quantity]),
                resid_post[-live:],
                _end_of_block(of_block, resid_pre, live),
                note=note,
                tolerance=tolerance,
            )
            for of_block in runs
            for live in of_row
        )


def _run_of_block(
    run: HookedRun, alone: Weights, across: Weights | None, layer: int, n: int
) -> Run:
    """The run of one block on `n` positions.

    alone: the stack of this layer alone
    across: in a decoder, the cross-attention of this layer alone
    """
    cross = None
    if across is not None:
        memory = run.tensors["cross"]["memory"][layer].to(across.device, across.dtype)
        cross = Cross(across, [blocks.memory_read(across.blocks[0], memory[None], across.config)])
    return Run(alone, blocks.position_terms(alone, n), depth=1, cross=cross)


def _end_of_block(run: Run, resid_pre: Tensor, live: int) -> Tensor:
    """The stream after a block at the `live` last positions, against the keys and values of the
    others. `pos d_model -> live d_model`

    run: of this block alone
    """
    entering = resid_pre[None, None].to(run.weights.device, run.weights.dtype)
    past = None
    if live < len(resid_pre):
        [earlier] = run.steps(entering[:, :, :-live])
        past = [earlier.read_later]
    [step] = run.steps(entering[:, :, -live:], past)
    return step.resid_post[0, 0].cpu()


def _may_route_otherwise(model: Model) -> bool:
    """Whether the model is routed and rounds to bfloat16: after other roundings, a router may
    choose other experts, so nothing beyond a router can be compared.
    """
    return model.dtype == COARSE and bool(model.config.n_experts)


def _through(model: Model, count: int) -> tuple[float | None, str]:
    """The tolerance, if it is not the dtype's, of a quantity that is computed through whole blocks,
    and the reason.
    """
    if model.dtype == COARSE:
        return 2 * rounded_through(count), EACH_ROUNDED
    if model.dtype == EXACT and any(model.config.mixers):
        return RECURRENT, FLOAT32_RECURRENCE
    if model.dtype == EXACT and model.config.family.in_float32:
        return ROUNDED, FLOAT32_STEPS
    return None, ""


def _swap_rows(model: Model, pairs: Sequence[tuple[str, str]]) -> Iterator[Row]:
    """The rows of two swaps: the stream at one word after every block, with z of one head from
    another text.

    One side is a hook on z in the running model, the other the run of all swaps. In an
    encoder-decoder, the heads are those of cross-attention, and the word is the target's last.
    """
    config = model.config
    attention = config.family.attentions[-1]
    stacks = read_stacks(model.weights, config, model.modules)
    ids = tokenize(model, pairs[0][0]).ids
    # Of a single text, the donor has the same tokens in reverse order.
    donor = tokenize(model, pairs[1][0]).ids if len(pairs) > 1 else ids[::-1]
    target = target_tokens(model, pairs[0][1]).ids if config.start_token is not None else None
    # A text of a causal model ends with the word. In one that reads both ways, it goes on.
    at, donor_at = (
        len(row) - 1 if attention.causal or target else len(row) // 2
        for row in (target or ids, target or donor)
    )
    stack = stacks[attention.name]
    layers = stack.has_heads.nonzero().flatten().tolist()
    if not layers:
        return
    middle = layers[len(layers) // 2]
    heads = [*dict.fromkeys([(layers[0], 0), (middle, config.n_heads - 1)])]
    z = _hooked_at(model, donor, target, donor_at)[attention.name]["z"]
    donors = {layer: z[number] for number, layer in enumerate(layers)}
    edited = stack.has_heads.new_zeros(len(heads), *stack.shape[:2])
    for number, (layer, head) in enumerate(heads):
        edited[number, layer, head] = True
    edits = Edits(
        Z,
        variants.branches(edited),
        lambda layer, recipient: donors[layer].to(recipient)[None, None],
    )
    if target is None:
        text = TargetText((*ids,), at)
        terms = blocks.position_terms(stack, len(ids))
        steps = variants.run_at_word(stack, [text], len(stack.blocks), terms, edits=edits)
    else:
        decoded = variants.decode(stacks, target, variants.encode(stacks, ids))
        steps = variants.run_last(stacks, decoded, edits)
    by_depth = [
        step.at_read_position(step.resid_post)[0, step.branch.variant_of].cpu() for step in steps
    ]
    tolerance, note = _through(model, config.n_layers + config.n_decoder_layers)
    formula = "E″ of every layer, hook on z"
    for number, (layer, head) in enumerate(heads):
        name = f"swap of {attention.name} L{layer}H{head}".replace("  ", " ")
        hooked = _hooked_at(model, ids, target, at, (layer, head, donors[layer][head]))
        streams = hooked["decoder" if target else ""]["resid_post"]
        # Each depth has a scale of its own.
        rows = [
            _row(
                stack,
                None,
                (name, formula),
                stream,
                computed[number],
                note=note,
                tolerance=tolerance,
            )
            for stream, computed in zip(streams, by_depth, strict=True)
        ]
        yield _worst(rows)


def _hooked_at(
    model: Model,
    ids: Sequence[int],
    target: Sequence[int] | None,
    at: int,
    swap: tuple[int, int, Tensor] | None = None,
) -> dict[str, dict[str, list[Tensor]]]:
    """z and the stream after every block of the hooked model at one position of a text, or of its
    target.

    swap: the layer and the head whose z there is replaced, and its new value, `d_head`
    """
    attention = model.config.family.attentions[-1]
    edits = []
    if swap is not None:
        layer, head, value = swap

        def edit(z: Tensor, hook: object) -> Tensor:
            z = z.clone()
            z[:, at, head] = value.to(z)
            return z

        edits = [(f"{attention.blocks}.{layer}.{attention.hooks['z']}", edit)]

    def select(name: str, tensor: Tensor) -> Tensor:
        # The text of an encoder-decoder may be shorter than its target, and is not read.
        return tensor[0, min(at, tensor.shape[1] - 1)].cpu()

    with hooks.recording(model, select, ("z", "resid_post"), edits) as recorded:
        hooks.run(model, [ids], None if target is None else [target])
    return recorded


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
        "x": f"{family.norm}(E)" if blocks.norms_input(block, config) else "E",
        "q": f"x W_Q{bias['q']}",
        "k": f"{read} W_K{bias['k']}",
        "v": f"{read} W_V{bias['v']}",
        "scores": _scores_formula(attention, config),
        "pattern": "softmax(scores)",
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
    if family.positions == "relative bias" and attention.name != "cross":
        scores += " + bias"
    return f"{scores}, masked" if attention.causal else scores


def _summed(stream: str, write: str, family: Family) -> str:
    """The formula of a block's addition to the stream, with its norms."""
    if family.norm_after_write:
        write = f"{family.norm}({write})"
    total = f"{stream} + {write}"
    return f"{family.norm}({total})" if family.norm_after_sum else total
