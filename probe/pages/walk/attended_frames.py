"""What a page on one attention shows, as tables and as the arrays with which it follows any head and any drawn token.

Queries come from `tokens`, keys and values from `source`: the target and the source of a translation, or one text twice. Axes:
`head` is a carried head (row of `heads`), `at` a drawn query position, `token` a drawn source position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import torch
from torch import Tensor

from probe.model import attention
from probe.model.check import Certificate
from probe.model.model import Model
from probe.model.records import CrossTrace, PairTrace, Trace
from probe.model.tokens import Tokens
from probe.pages.walk import steps
from probe.pages.walk.carried import Block, decoded, packed
from probe.pages.walk.choose import DRAWN, OF_LONG
from probe.pages.walk.scene import CELLS
from probe.study.columns import rounded

NEXT = 5


@dataclass(frozen=True, eq=False)
class Attended:
    """One attention at work: who looks at whom, and the logits of the next token where the model says one.

    `causal` says that later tokens are closed to it.
    """

    tokens: Tokens
    source: Tokens
    record: Trace | CrossTrace
    logits: Tensor | None
    causal: bool

    @property
    def alone(self) -> bool:
        """Whether there is one text, which looks at itself."""
        return self.tokens is self.source


def across(pair: PairTrace) -> Attended:
    """The cross-attention of a translation."""
    return Attended(pair.target, pair.source, pair.cross, pair.logits, causal=False)


def within(trace: Trace, *, causal: bool) -> Attended:
    """The self-attention of one text; what a model says that reads both ways is no next token."""
    return Attended(trace.tokens, trace.tokens, trace, trace.head_output if causal else None, causal)


@dataclass(frozen=True, eq=False)
class AttentionScene:
    """One attention, the position and head that are followed first, and what the logit of a word gets from where.

    `word` is the one that is followed; where it is one to come, `token` is its first and `added: layer head query_pos key_pos` what
    each head adds to its logit; both are None otherwise.
    """

    seen: Attended
    at: int
    layer: int
    head: int
    word: str | None
    token: int | None = None
    added: Tensor | None = None

    @cached_property
    def sources(self) -> list[int]:
        """The source tokens that are drawn: all of a short text, of a long one those that the position looks at most."""
        n, weights = len(self.seen.source), self.seen.record.pattern[self.layer, self.head, self.at]
        order = weights.argsort(descending=True, stable=True).tolist()
        if n <= DRAWN:
            return list(range(n))
        first = [self.at] if self.seen.alone else []
        return sorted([*first, *(pos for pos in order if pos not in first)][:OF_LONG])

    @cached_property
    def targets(self) -> list[int]:
        """The tokens that look and are drawn: the same ones of a single text; else all of a short target, of a long one those around
        the position."""
        if self.seen.alone:
            return self.sources
        n = len(self.seen.tokens)
        first = max(0, min(self.at - OF_LONG // 2, n - OF_LONG))
        return list(range(n)) if n <= DRAWN else list(range(first, first + OF_LONG))

    @property
    def layers(self) -> list[int]:
        """The layers whose heads the page carries: all, or in a large model or text only the one that was chosen."""
        layers, heads = self.seen.record.pattern.shape[:2]
        cells = layers * heads * len(self.sources) * len(self.targets)
        return list(range(layers)) if cells <= CELLS else [self.layer]


def parts(scene: AttentionScene, layer: int, at: int) -> Tensor:
    """ΔE at one position by source token, every head. `-> head key_pos d_model`"""
    record = scene.seen.record
    return attention.write_by_source(
        record.pattern[layer][:, at], record.v[layer], record.stack.blocks[layer].w_o.cpu()
    )


def shares(scene: AttentionScene, layer: int, positions: Sequence[int]) -> Tensor:
    """Of ΔE at these positions, along it, from each source token; they sum to 1. `-> head position key_pos`"""
    record = scene.seen.record
    whole = attention.write(record.z[layer], record.stack.blocks[layer].w_o.cpu())
    return torch.stack([steps.along(parts(scene, layer, at), whole[:, at]) for at in positions], dim=1)


def frames(model: Model, scene: AttentionScene, certificate: Certificate) -> dict[str, pd.DataFrame]:
    """The tables beside the page: of the head that is followed first, at the position that is followed first."""
    made = {"tokens": _tokens(scene), "attention": _attention(scene), "values": _values(scene), "heads": _heads(scene)}
    made |= {} if scene.seen.logits is None else {"next": _next(model, scene, scene.seen.logits)}
    made |= {"certificate": _certificate(certificate)}
    return {name: rounded(frame) for name, frame in made.items()}


def _tokens(scene: AttentionScene) -> pd.DataFrame:
    seen = scene.seen
    sides = [("source", seen.source, scene.sources), ("target", seen.tokens, scene.targets)]
    sides = [("text", seen.tokens, scene.targets)] if seen.alone else sides
    rows = [
        (name, pos, tokens.pieces[pos], tokens.labels[pos], tokens.ids[pos], pos in drawn)
        for name, tokens, drawn in sides
        for pos in range(len(tokens))
    ]
    return pd.DataFrame(rows, columns=["text", "pos", "piece", "label", "id", "drawn"])


def _attention(scene: AttentionScene) -> pd.DataFrame:
    seen, place = scene.seen, (scene.layer, scene.head)
    scores, pattern = (grid[place].tolist() for grid in (seen.record.scores, seen.record.pattern))
    rows = [
        (t, j, seen.tokens.labels[t], seen.source.labels[j], not seen.causal or j <= t, scores[t][j], pattern[t][j])
        for t in scene.targets
        for j in scene.sources
    ]
    frame = pd.DataFrame(rows, columns=["query_pos", "key_pos", "query", "key", "allowed", "score", "pattern"])
    return frame.assign(score=frame["score"].where(frame["allowed"]))


def _values(scene: AttentionScene) -> pd.DataFrame:
    record, labels = scene.seen.record, scene.seen.source.labels
    layer, head, at = scene.layer, scene.head, scene.at
    out = attention.write(record.v[layer, head], record.stack.blocks[layer].w_o[head].cpu())
    columns = {
        "label": labels,
        "weight": record.pattern[layer, head, at],
        "value_length": out.norm(dim=-1),
        "length": record.delta_e_by_source(layer, head, at).norm(dim=-1),
        "share": shares(scene, layer, [at])[head, 0],
    }
    if scene.added is not None:
        columns["logit"] = scene.added[layer, head, at]
    return pd.DataFrame({"key_pos": range(len(labels))} | {name: _plain(values) for name, values in columns.items()})


def _heads(scene: AttentionScene) -> pd.DataFrame:
    pattern, labels, at = scene.seen.record.pattern, scene.seen.source.labels, scene.at
    length, moved = lengths(scene.seen.record)
    rows = [
        {
            "layer": layer,
            "head": head,
            "length": length[layer, head, at].item(),
            "moved": moved[layer, head, at].item(),
            "looks_most_at": labels[int(pattern[layer, head, at].argmax())],
            "weight": pattern[layer, head, at].max().item(),
        }
        | ({} if scene.added is None else {"logit": scene.added[layer, head, at].sum().item()})
        for layer in range(pattern.shape[0])
        for head in range(pattern.shape[1])
    ]
    return pd.DataFrame(rows)


def _next(model: Model, scene: AttentionScene, logits: Tensor) -> pd.DataFrame:
    found = _following(logits)
    rows = [
        (t, label, rank, model.tokenizer.decode([int(found.indices[t, rank])]), found.values[t, rank].item())
        for t, label in enumerate(scene.seen.tokens.labels)
        for rank in range(found.indices.shape[1])
    ]
    return pd.DataFrame(rows, columns=["pos", "label", "rank", "token", "probability"])


def _certificate(certificate: Certificate) -> pd.DataFrame:
    columns = ["where", "quantity", "formula", "error", "scale", "tolerance", "ok", "note"]
    return pd.DataFrame([[getattr(row, name) for name in columns] for row in certificate.rows], columns=columns)


def _plain(values: object) -> object:
    return values.tolist() if isinstance(values, Tensor) else values


def _following(logits: Tensor) -> torch.return_types.topk:
    """The likeliest next tokens at every position that looks. `query_pos rank`"""
    return logits.softmax(-1).topk(min(NEXT, logits.shape[-1]))


def lengths(record: Trace | CrossTrace) -> tuple[Tensor, Tensor]:
    """‖ΔE‖ of every head at every position, and the same as a share of the vector that it is added to. `-> layer head query_pos`"""
    w_o = torch.stack([block.w_o for block in record.stack.blocks]).cpu()
    length = attention.write(record.z, w_o).norm(dim=-1)
    return length, length / record.resid_pre.norm(dim=-1)[:, None]


def carried(model: Model, scene: AttentionScene) -> Block:
    """Everything the page's script reads, ready for JSON."""
    seen, (layers, heads) = scene.seen, scene.seen.record.pattern.shape[:2]
    arrays, words = _of_heads(scene), {}
    length, moved = lengths(seen.record)
    arrays |= {"length": length[..., scene.targets], "moved": moved[..., scene.targets]}
    if scene.added is not None:
        arrays["adds"] = scene.added.sum(-1)[..., scene.targets]
    if seen.logits is not None:
        following = _following(seen.logits[scene.targets])
        arrays["following"] = following.values
        words["following"] = decoded(following.indices, model.tokenizer.decode)
    return {
        "source": _chips(seen.source, scene.sources),
        "tokens": _chips(seen.tokens, scene.targets),
        "first": {"at": scene.targets.index(scene.at), "layer": scene.layer, "head": scene.head},
        "sizes": {"layers": layers, "heads": heads, "source": len(seen.source), "target": len(seen.tokens)},
        "heads": [[layer, head] for layer in scene.layers for head in range(heads)],
        "beyond": len(seen.source) - len(scene.sources),
        "causal": seen.causal,
        "asked": None if scene.added is None else scene.word,
        "arrays": {name: packed(array) for name, array in arrays.items()},
        "words": words,
    }


def _of_heads(scene: AttentionScene) -> dict[str, Tensor]:
    """Arrays of every carried head; with tokens that are not drawn, what they amount to together."""
    record, targets, sources = scene.seen.record, scene.targets, scene.sources
    made: dict[str, Tensor] = {}
    drawn = {"pattern": record.pattern[scene.layers][:, :, targets]}
    drawn["share"] = torch.stack([shares(scene, layer, targets) for layer in scene.layers])
    if scene.added is not None:
        drawn["logit"] = scene.added[scene.layers][:, :, targets]
    for name, values in drawn.items():
        made[name] = values.flatten(0, 1)[:, :, sources]
        made[f"{name}_rest"] = values.flatten(0, 1).sum(-1) - made[name].sum(-1)
    w_o = [record.stack.blocks[layer].w_o.cpu() for layer in scene.layers]
    out = torch.cat([attention.write(record.v[n], w) for n, w in zip(scene.layers, w_o, strict=True)])
    made["value_length"] = out.norm(dim=-1)[:, sources]
    made["part_length"] = made["pattern"] * made["value_length"][:, None]
    return made


def _chips(tokens: Tokens, drawn: list[int]) -> list[dict[str, object]]:
    return [{"pos": pos, "label": tokens.labels[pos], "piece": tokens.pieces[pos]} for pos in drawn]
