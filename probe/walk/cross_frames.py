"""What a page on cross-attention shows, as tables and as the arrays with which it follows any head and any drawn token.

Axes: `head` is a carried head (row of `heads`), `at` a drawn target position, `token` a drawn source position.
"""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import torch
from torch import Tensor

from probe import attention
from probe.check import Certificate
from probe.families.pairs import PairTrace
from probe.models import Model
from probe.tidy import rounded
from probe.tokens import Tokens
from probe.walk import steps
from probe.walk.carried import Block, decoded, packed
from probe.walk.choose import DRAWN, OF_LONG
from probe.walk.scene import CELLS

NEXT = 5


@dataclass(frozen=True, eq=False)
class CrossScene:
    """One trace of two texts, the position and head that are followed first, and what a word's logit gets from where.

    `token` is that word's first, `added: layer head query_pos key_pos`; both None where no word was asked for.
    """

    pair: PairTrace
    at: int
    layer: int
    head: int
    word: str | None
    token: int | None
    added: Tensor | None

    @cached_property
    def sources(self) -> list[int]:
        """The source tokens that are drawn: all of a short text, of a long one those that the position looks at most."""
        n, weights = len(self.pair.source), self.pair.cross.pattern[self.layer, self.head, self.at]
        order = weights.argsort(descending=True, stable=True).tolist()
        return list(range(n)) if n <= DRAWN else sorted(order[:OF_LONG])

    @cached_property
    def targets(self) -> list[int]:
        """The target tokens that are drawn: all of a short text, of a long one those around the position."""
        n = len(self.pair.target)
        first = max(0, min(self.at - OF_LONG // 2, n - OF_LONG))
        return list(range(n)) if n <= DRAWN else list(range(first, first + OF_LONG))

    @property
    def layers(self) -> list[int]:
        """The layers whose heads the page carries: all, or in a large model or text only the one that was chosen."""
        layers, heads = self.pair.cross.pattern.shape[:2]
        cells = layers * heads * len(self.sources) * len(self.targets)
        return list(range(layers)) if cells <= CELLS else [self.layer]


def parts(scene: CrossScene, layer: int, at: int) -> Tensor:
    """ΔE at one position by source token, every head. `-> head key_pos d_model`"""
    cross = scene.pair.cross
    return attention.write_by_source(cross.pattern[layer][:, at], cross.v[layer], cross.stack.blocks[layer].w_o.cpu())


def shares(scene: CrossScene, layer: int) -> Tensor:
    """Of ΔE, along it, from each source token; they sum to 1. `-> head query_pos key_pos`"""
    cross = scene.pair.cross
    whole = attention.write(cross.z[layer], cross.stack.blocks[layer].w_o.cpu())
    found = [steps.along(parts(scene, layer, at), whole[:, at]) for at in range(len(scene.pair.target))]
    return torch.stack(found, dim=1)


def frames(model: Model, scene: CrossScene, certificate: Certificate) -> dict[str, pd.DataFrame]:
    """The tables beside the page: of the head that is followed first, at the position that is followed first."""
    made = {"tokens": _tokens(scene), "attention": _attention(scene), "values": _values(scene), "heads": _heads(scene)}
    made |= {"next": _next(model, scene), "certificate": _certificate(certificate)}
    return {name: rounded(frame) for name, frame in made.items()}


def _tokens(scene: CrossScene) -> pd.DataFrame:
    sides = (("source", scene.pair.source, scene.sources), ("target", scene.pair.target, scene.targets))
    rows = [
        (name, pos, tokens.pieces[pos], tokens.labels[pos], tokens.ids[pos], pos in drawn)
        for name, tokens, drawn in sides
        for pos in range(len(tokens))
    ]
    return pd.DataFrame(rows, columns=["text", "pos", "piece", "label", "id", "drawn"])


def _attention(scene: CrossScene) -> pd.DataFrame:
    pair, place = scene.pair, (scene.layer, scene.head)
    rows = [
        (t, j, query, key, pair.cross.scores[*place, t, j].item(), pair.cross.pattern[*place, t, j].item())
        for t, query in enumerate(pair.target.labels)
        for j, key in enumerate(pair.source.labels)
    ]
    return pd.DataFrame(rows, columns=["query_pos", "key_pos", "query", "key", "score", "pattern"])


def _values(scene: CrossScene) -> pd.DataFrame:
    cross, labels = scene.pair.cross, scene.pair.source.labels
    layer, head, at = scene.layer, scene.head, scene.at
    out = attention.write(cross.v[layer, head], cross.stack.blocks[layer].w_o[head].cpu())
    columns = {
        "label": labels,
        "weight": cross.pattern[layer, head, at],
        "value_length": out.norm(dim=-1),
        "length": cross.delta_e_by_source(layer, head, at).norm(dim=-1),
        "share": shares(scene, layer)[head, at],
    }
    if scene.added is not None:
        columns["logit"] = scene.added[layer, head, at]
    return pd.DataFrame({"key_pos": range(len(labels))} | {name: _plain(values) for name, values in columns.items()})


def _heads(scene: CrossScene) -> pd.DataFrame:
    pattern, labels, at = scene.pair.cross.pattern, scene.pair.source.labels, scene.at
    length, moved = lengths(scene.pair)
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


def _next(model: Model, scene: CrossScene) -> pd.DataFrame:
    found = _following(scene)
    rows = [
        (t, label, rank, model.tokenizer.decode([int(found.indices[t, rank])]), found.values[t, rank].item())
        for t, label in enumerate(scene.pair.target.labels)
        for rank in range(found.indices.shape[1])
    ]
    return pd.DataFrame(rows, columns=["pos", "label", "rank", "token", "probability"])


def _certificate(certificate: Certificate) -> pd.DataFrame:
    columns = ["where", "quantity", "formula", "error", "scale", "tolerance", "ok", "note"]
    return pd.DataFrame([[getattr(row, name) for name in columns] for row in certificate.rows], columns=columns)


def _plain(values: object) -> object:
    return values.tolist() if isinstance(values, Tensor) else values


def _following(scene: CrossScene) -> torch.return_types.topk:
    """The likeliest next tokens at every target position. `query_pos rank`"""
    return scene.pair.logits.softmax(-1).topk(min(NEXT, scene.pair.logits.shape[-1]))


def lengths(pair: PairTrace) -> tuple[Tensor, Tensor]:
    """‖ΔE‖ of every head at every position, and the same as a share of the vector that it is added to. `-> layer head query_pos`"""
    cross = pair.cross
    w_o = torch.stack([block.w_o for block in cross.stack.blocks]).cpu()
    length = attention.write(cross.z, w_o).norm(dim=-1)
    return length, length / cross.resid_pre.norm(dim=-1)[:, None]


def carried(model: Model, scene: CrossScene) -> Block:
    """Everything the page's script reads, ready for JSON."""
    pair, (layers, heads) = scene.pair, scene.pair.cross.pattern.shape[:2]
    arrays = _of_heads(scene)
    length, moved = lengths(scene.pair)
    arrays |= {"length": length[..., scene.targets], "moved": moved[..., scene.targets]}
    if scene.added is not None:
        arrays["adds"] = scene.added.sum(-1)[..., scene.targets]
    following = _following(scene)
    arrays["following"] = following.values[scene.targets]
    return {
        "source": _chips(pair.source, scene.sources),
        "tokens": _chips(pair.target, scene.targets),
        "first": {"at": scene.targets.index(scene.at), "layer": scene.layer, "head": scene.head},
        "sizes": {"layers": layers, "heads": heads, "source": len(pair.source), "target": len(pair.target)},
        "heads": [[layer, head] for layer in scene.layers for head in range(heads)],
        "beyond": len(pair.source) - len(scene.sources),
        "asked": scene.word,
        "arrays": {name: packed(array) for name, array in arrays.items()},
        "words": {"following": decoded(following.indices[scene.targets], model.tokenizer.decode)},
    }


def _of_heads(scene: CrossScene) -> dict[str, Tensor]:
    """Arrays of every carried head; with tokens that are not drawn, what they amount to together."""
    cross, shown = scene.pair.cross, (scene.targets, scene.sources)
    made: dict[str, Tensor] = {}
    whole = {"pattern": cross.pattern[scene.layers], "share": torch.stack([shares(scene, n) for n in scene.layers])}
    if scene.added is not None:
        whole["logit"] = scene.added[scene.layers]
    for name, values in whole.items():
        drawn = values.flatten(0, 1)[:, shown[0]]
        made[name] = drawn[:, :, shown[1]]
        made[f"{name}_rest"] = drawn.sum(-1) - made[name].sum(-1)
    w_o = [cross.stack.blocks[layer].w_o.cpu() for layer in scene.layers]
    out = torch.cat([attention.write(cross.v[n], w) for n, w in zip(scene.layers, w_o, strict=True)])
    made["value_length"] = out.norm(dim=-1)[:, shown[1]]
    made["part_length"] = made["pattern"] * made["value_length"][:, None]
    return made


def _chips(tokens: Tokens, drawn: list[int]) -> list[dict[str, object]]:
    return [{"pos": pos, "label": tokens.labels[pos], "piece": tokens.pieces[pos]} for pos in drawn]
