"""Estimates of swaps by gradients: how far the read-out would move if it were linear in a head's
output.

    attribution patching    <gradient of M at the recipient's own z, z of the donor - own z>
    integrated gradients    the same, the gradient averaged over steps on the way to the donor's z

M is the coordinate that `probe.patching.heads.swap_heads` reads, so each is an estimate of a swap
that it performs. Heads of one layer go together on the way to the donor, one layer at a time: with
one head at a time the integral would be the swap itself, at a multiple of its price.

Gradients are torch's own, taken on the fused forward of the word (`probe.patching.variants`).

Sources: Nanda 2023 and Syed et al. 2023 (attribution patching); Sundararajan et al. 2017
(integrated gradients); Marks et al. 2024 (integrated gradients of activations, layer by layer).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from probe.model import forward, fused
from probe.model.fused import PositionTables
from probe.model.weights import Weights
from probe.patching.heads import in_batches
from probe.patching.inputs import Rows, Texts, swap_inputs
from probe.patching.variants import Branch, Edits, Step, Z, run_at_word

DOING = "Cannot estimate swaps by gradients"
# How many times as many numbers as a run without gradients one with them holds.
HELD = 4


def attribute_heads(
    weights: Weights,
    rows: Rows,
    donor_z: Tensor,
    directions: Tensor,
    stages: Sequence[int],
    *,
    steps: int = 0,
) -> Tensor:
    """An estimate of `swap_heads` for every head, each layer read at a stage of its own. `-> row
    layer head`

    rows, donor_z: as in `swap_heads`
    directions: of each row behind every block and, where there is one more, behind the final norm.
        `row stage d_model`
    stages: where the heads of each layer are read: 1 is behind the first block. `layer`
    steps: of integrated gradients; 0 for attribution patching, whose one gradient is taken at the
        recipient
    """
    texts, donor_z, directions = swap_inputs(
        weights, rows, donor_z, directions, DOING, stages=max(stages)
    )
    layers = donor_z.shape[1]
    estimate = torch.zeros(donor_z.shape[:3], dtype=donor_z.dtype)
    for stage in sorted(set(stages)):
        # A layer behind the stage does nothing there, one without heads has nothing to swap.
        read = [
            layer
            for layer in range(min(stage, layers))
            if stages[layer] == stage and weights.has_heads[layer]
        ]
        if read:
            ways = _Ways(weights, donor_z, directions[:, stage - 1], stage, read, steps)
            variants = 1 + len(read) * steps
            [of_layers] = in_batches(texts, weights, HELD * variants, ways.estimate)
            estimate[:, read] = of_layers
    return estimate


class _Ways:
    """The ways of some layers' heads to their donors, read at one stage.

    along: the direction of each row. `row d_model`
    """

    def __init__(
        self,
        weights: Weights,
        donor_z: Tensor,
        along: Tensor,
        stage: int,
        layers: Sequence[int],
        steps: int,
    ) -> None:
        self.weights = weights
        self.donor_z = donor_z
        self.along = along
        self.depth = min(stage, len(weights.blocks))
        self.after_norm = stage > len(weights.blocks)
        self.layers = layers
        # The middle of each step.
        self.parts = (torch.arange(steps) + 0.5) / steps if steps else torch.zeros(0)

    def estimate(self, texts: Texts, members: list[int], tables: PositionTables) -> list[Tensor]:
        """The estimates of a batch. `-> row layer head`"""
        device, dtype = self.weights.device, self.weights.dtype
        donors = self.donor_z[members].to(device, dtype)
        along = self.along[members].to(device, dtype)
        with torch.inference_mode(False), torch.enable_grad():
            donors, along = donors.clone(), along.clone()  # ordinary tensors
            tables = fused.position_tables(self.weights, len(texts[0].ids))
            found = self._along_ways if len(self.parts) else self._at_recipients
            gradients, changes = found(texts, donors, along, tables)
        return [torch.stack([(g * c).sum(-1) for g, c in zip(gradients, changes, strict=True)], 1)]

    def _at_recipients(
        self, texts: Texts, donors: Tensor, along: Tensor, tables: PositionTables
    ) -> tuple[Sequence[Tensor], list[Tensor]]:
        """By layer the gradient at the recipient's own z, and the change to the donor's. `row head
        d_head` each"""
        pushes, changes = [], []
        for step in run_at_word(self.weights, texts, self.depth, tables):
            if step.layer in self.layers:
                own = step.reading(step.z)[:, 0]
                push = torch.zeros_like(own, requires_grad=True)  # moves z, and is 0
                step.z = _at_the_word(step, push)
                pushes.append(push)
                changes.append(donors[:, step.layer] - own.detach())
        return torch.autograd.grad(self._read(step, along), pushes), changes

    def _along_ways(
        self, texts: Texts, donors: Tensor, along: Tensor, tables: PositionTables
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The same with gradients averaged over the steps of each way, every step a variant."""
        tree, pushes, changes = [], [], []
        variants = 1  # the unchanged one
        for layer in range(self.depth):
            is_new = torch.zeros(variants, dtype=torch.bool)
            parent = torch.arange(variants)
            if layer in self.layers:
                count = len(self.parts)
                is_new = torch.cat([is_new, torch.ones(count, dtype=torch.bool)])
                parent = torch.cat([parent, torch.zeros(count, dtype=torch.long)])
            edited = is_new[:, None].expand(-1, self.weights.shape[1])
            tree.append(Branch(parent, edited, parent))
            variants = len(parent)

        def on_the_way(layer: int, own: Tensor) -> Tensor:
            change = donors[:, layer] - own.detach()
            parts = self.parts.to(change)[:, None, None]
            push = torch.zeros(len(own), *parts.shape[:1], *own.shape[1:]).to(own).requires_grad_()
            pushes.append(push)
            changes.append(change)
            steps = own[:, None].detach() + parts * change[:, None] + push
            earlier = len(tree[layer].parent) - len(parts)
            unused = steps.new_zeros(len(own), earlier, *own.shape[1:])
            return torch.cat([unused, steps], dim=1)

        edits = Edits(Z, tree, on_the_way)
        for step in run_at_word(self.weights, texts, self.depth, tables, edits=edits):
            pass
        by_step = torch.autograd.grad(self._read(step, along), pushes)
        return [of_layer.mean(1) for of_layer in by_step], changes

    def _read(self, step: Step, along: Tensor) -> Tensor:
        """The sum of M over rows and variants, each of which has a gradient of its own."""
        resid = step.reading(step.resid_post)
        if self.after_norm:
            resid = forward.unembedding_input(self.weights, resid)
        return (resid * along[:, None]).sum()


def _at_the_word(step: Step, push: Tensor) -> Tensor:
    """z of a step with something added at the word. `batch head d_head -> batch 1 live head
    d_head`"""
    live = step.z.shape[2]
    if live == 1:
        return step.z + push[:, None, None]
    assert step.run.at is not None
    is_word = torch.arange(live, device=push.device) == step.run.at[:, None]  # batch live
    return step.z + is_word[:, None, :, None, None] * push[:, None, None]
