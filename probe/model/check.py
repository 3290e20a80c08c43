"""The certificate: the hooked model against the same numbers computed from the raw weights, row by row.

One side is TransformerLens's hooks on the running model. The other is `probe.model.replay`, a whole forward in float64 from the
token ids and the safetensors file; nothing of the hooked side enters it, so an error anywhere shows in the first row that
it touches and in everything after. Errors are relative to the scale (largest absolute value) of the tensor they are in:
at most 1e-5 for a float32 model, 1e-12 for a float64 one. The logits are held against plain Hugging Face as well.

For the families beside GPT-2 (`probe.families`) each layer starts from the stream that the hooks saw enter it, which has rows of
its own; a hook that lies is replaced, and its row says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from probe.errors import CrossCheckError
from probe.model import replay
from probe.model.architectures import WHOLE
from probe.model.hooks import read
from probe.model.load import Model
from probe.model.pairs import target_tokens
from probe.model.records import Trace
from probe.model.rows import compare
from probe.model.tokens import tokenize
from probe.model.trace import trace

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
DEFAULT_TEXTS = ("Make a deposit at the bank", "A fluffy blue creature roamed the verdant forest")
QUANTITIES = {
    "resid_pre": "E",
    "x": "LN1(E)",
    "q": "x W_Q + b_Q",
    "k": "x W_K + b_K",
    "v": "x W_V + b_V",
    "scores": "Q Kᵀ / √d_head, masked",
    "pattern": "softmax(scores)",
    "z": "A V",
    "delta_e": "z W_O, every head",
    "attn_out": "Σ ΔE + b_O",
    "resid_mid": "E + Σ ΔE + b_O",
    "mlp_out": "MLP(LN2(E′))",
    "resid_post": "E′ + MLP",
}
MASKED = -1e30


@dataclass(frozen=True)
class Row:
    """One comparison: `error` = largest |hooked - scratch| / `scale`, over all texts; `layer` None is the whole model.

    `stack` tells the attentions of an encoder-decoder apart; `note` says which hook was repaired and how, or why the
    tolerance is a wider one.
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
        """The place in words: "layer 3", "cross layer 0", "the whole model"."""
        return "the whole model" if self.layer is None else f"{self.stack} layer {self.layer}".strip()

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # False for NaN, too


@dataclass(frozen=True)
class Certificate:
    """All rows of a check, in the order of the computation."""

    model_name: str
    dtype: str
    texts: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    @property
    def worst(self) -> Row:
        """The row nearest to, or furthest beyond, its tolerance."""
        return max(self.rows, key=lambda row: row.error if row.error == row.error else float("inf"))

    def require(self) -> "Certificate":
        """Itself when every row holds; otherwise raises CrossCheckError naming the first row that fell short."""
        for row in self.rows:
            if not row.ok:
                raise CrossCheckError(
                    f"Checking {self.model_name} against the from-scratch math: {row.quantity} of {row.where} is off by "
                    f"{row.error:.1e} of its scale, expected at most {row.tolerance:.0e}; nothing is reported from numbers "
                    "that disagree: run `probe check` on this model to see every row."
                )
        return self


def certify(model: Model, texts: Sequence[str] = DEFAULT_TEXTS) -> Certificate:
    """Compare the hooked model with the from-scratch forward on every text; the worst error per layer and quantity counts.

    An encoder-decoder reads each text as source and as target. Raises InputError for a text the model cannot take. Does not
    raise for a failing row: see `Certificate.require`.
    """
    if model.config.architecture != WHOLE:
        return _certificate(model, texts, [_compare_family(model, text) for text in texts])
    weights = replay.read_weights(model)
    plain = _plain_hugging_face(model)
    return _certificate(model, texts, [_compare(model, trace(model, text), weights, plain) for text in texts])


def certify_pair(model: Model, source: str, target: str) -> Certificate:
    """The same of an encoder-decoder that reads these two texts. Raises InputError for a text or model that cannot be used so."""
    return _certificate(model, (source, target), [_compare_family(model, source, target)])


def _certificate(model: Model, texts: Sequence[str], runs: Sequence[Sequence[Row]]) -> Certificate:
    rows = tuple(max(same, key=_badness) for same in zip(*runs, strict=True))
    return Certificate(model.name, str(model.dtype).removeprefix("torch."), tuple(texts), rows)


def _compare_family(model: Model, text: str, answer: str | None = None) -> list[Row]:
    ids, answer = tokenize(model, text).ids, text if answer is None else answer
    target = target_tokens(model, answer).ids if model.config.start_token is not None else None
    rows = []
    with torch.inference_mode():
        for found in compare(model, read(model, ids, target), ids, target):
            tolerance = found.tolerance or TOLERANCE[model.dtype]
            error, scale = _difference(found.seen, found.expected)
            row = Row(found.layer, found.quantity, found.formula, error, scale, tolerance, found.stack, found.note)
            rows.append(row)
    return rows


def _compare(model: Model, hooked: Trace, weights: replay.Weights, plain: torch.nn.Module) -> list[Row]:
    tolerance = TOLERANCE[model.dtype]
    ids = torch.tensor(hooked.tokens.ids, device=weights.wte.device)
    rows = []
    with torch.inference_mode():
        for layer, scratch in enumerate(replay.run(weights, ids, torch.float64)):
            for name, formula in QUANTITIES.items():
                seen = _own_writes(model, hooked, layer) if name == "delta_e" else getattr(hooked, name)[layer]
                error, scale = _difference(seen, scratch[name].cpu())
                rows.append(Row(layer, name, formula, error, scale, tolerance))
        scratch_logits = replay.unembed(weights, scratch["resid_post"]).cpu()
        plain_logits = plain(ids[None].to(next(plain.parameters()).device)).logits[0].cpu()
    for name, formula, reference in (
        ("logits", "LN_f(E) W_Uᵀ", scratch_logits),
        ("logits, Hugging Face", "hooked against the plain model", plain_logits),
    ):
        rows.append(Row(None, name, formula, *_difference(hooked.logits, reference), tolerance))
    return rows


def _own_writes(model: Model, hooked: Trace, layer: int) -> Tensor:
    """ΔE of every head by the running model's own output projection o, given one head at a time: o(z of it alone) - o(0).

    With the raw W_O on both sides, heads in the wrong order would agree with themselves. `-> head pos d_model`
    """
    z = hooked.z[layer].to(model.device)
    alone = torch.eye(len(z), dtype=z.dtype, device=z.device)[:, None, :, None] * z.transpose(
        0, 1
    )  # head pos head d_head
    project = model.bridge.blocks[layer].attn.o
    return (project(alone.flatten(2)) - project(torch.zeros_like(alone).flatten(2))).cpu()


def _difference(seen: Tensor, expected: Tensor) -> tuple[float, float]:
    """The largest error relative to the scale, and the scale; entries that both sides mask are left out of both."""
    seen, expected = seen.double(), expected.double()
    masked = expected < MASKED
    if not torch.equal(seen < MASKED, masked):
        return float("inf"), 1.0
    seen, expected = seen.masked_fill(masked, 0), expected.masked_fill(masked, 0)
    scale = expected.abs().max().item()
    gap = (seen - expected).abs().max().item()
    return (gap / scale if scale else (float("inf") if gap else 0.0)), scale


def _badness(row: Row) -> float:
    return row.error if row.error == row.error else float("inf")


def _plain_hugging_face(model: Model) -> torch.nn.Module:
    """A fresh Hugging Face model with no hooks, filled from the same raw weights."""
    config = model.bridge.original_model.config
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    state = {
        name if name.startswith("lm_head") else f"transformer.{name}": tensor for name, tensor in model.weights.items()
    }
    state.setdefault("lm_head.weight", model.weights["wte.weight"])
    plain.load_state_dict(state, strict=False, assign=True)
    return plain.eval()
