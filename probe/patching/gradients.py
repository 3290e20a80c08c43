"""Estimates of swaps from gradients: how far the read-out would move if it were linear in a head's
output.

    attribution patching    <∂M/∂z at the recipient's z, donor z - recipient z>
    integrated gradients    the same with ∂M/∂z averaged over steps from the recipient's z to the
                            donor's

M is the coordinate that `probe.patching.heads.swap_heads` reads, so each number is an estimate of a
swap that it performs. In integrated gradients, the heads of one layer move to the donor together,
one layer at a time. With one head at a time, the integral would be equal to the swap and cost
several times as much.

The gradients are torch's, through the run of the word (`probe.model.variants`).

Sources: Nanda 2023 and Syed et al. 2023 (attribution patching); Sundararajan et al. 2017
    (integrated gradients); Marks et al. 2024 (integrated gradients of activations, layer by layer).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from probe.model import blocks, forward
from probe.model.blocks import PositionTerms
from probe.model.variants import Branch, Edits, Step, Z, run_at_word
from probe.model.weights import Weights
from probe.patching.heads import in_batches
from probe.patching.inputs import Rows, Texts, swap_inputs

DOING = "Cannot estimate swaps by gradients"
# The memory of a run with gradients, as a multiple of that of a run without.
GRADIENT_MEMORY = 4


def attribute_heads(
    weights: Weights,
    rows: Rows,
    donor_z: Tensor,
    directions: Tensor,
    stages: Sequence[int],
    *,
    steps: int = 0,
) -> Tensor:
    """An estimate of `swap_heads` for every head, with a read-out stage for each layer.

    `-> row layer head`

    rows, donor_z: as in `swap_heads`
    directions: `row stage d_model`, the direction of each row after every block; an additional
        stage is after the final norm
    stages: `layer`, the stage at which the heads of each layer are read; stage 1 is after the first
        block
    steps: the number of steps of integrated gradients; 0 for attribution patching, with a single
        gradient at the recipient
    """
    texts, donor_z, directions = swap_inputs(
        weights, rows, donor_z, directions, DOING, stages=max(stages)
    )
    layers = donor_z.shape[1]
    estimate = torch.zeros(donor_z.shape[:3], dtype=donor_z.dtype)
    for read_at in sorted(set(stages)):
        # A layer after the stage has no effect there, and a layer without heads has no swap.
        at_stage = [
            layer
            for layer in range(min(read_at, layers))
            if stages[layer] == read_at and weights.has_heads[layer]
        ]
        if at_stage:
            estimator = _Estimator(
                weights, donor_z, directions[:, read_at - 1], read_at, at_stage, steps
            )
            variants = 1 + len(at_stage) * steps
            [of_layers] = in_batches(texts, weights, GRADIENT_MEMORY * variants, estimator.estimate)
            estimate[:, at_stage] = of_layers
    return estimate


class _Estimator:
    """Estimates for the heads of some layers, read at one stage.

    along: `row d_model`, the direction of each row
    """

    def __init__(
        self,
        weights: Weights,
        donor_z: Tensor,
        along: Tensor,
        read_at: int,
        layers: Sequence[int],
        steps: int,
    ) -> None:
        self.weights = weights
        self.donor_z = donor_z
        self.along = along
        self.depth = min(read_at, len(weights.blocks))
        self.after_norm = read_at > len(weights.blocks)
        self.layers = layers
        # The midpoint of each step, as a fraction of the change.
        self.fractions = (torch.arange(steps) + 0.5) / steps if steps else torch.zeros(0)

    def estimate(self, texts: Texts, members: list[int], terms: PositionTerms) -> list[Tensor]:
        """The estimates of a batch. `-> row layer head`"""
        device, dtype = self.weights.device, self.weights.dtype
        donors = self.donor_z[members].to(device, dtype)
        along = self.along[members].to(device, dtype)
        with torch.inference_mode(False), torch.enable_grad():
            donors, along = donors.clone(), along.clone()  # tensors of inference mode have no grad
            terms = blocks.position_terms(self.weights, len(texts[0].ids))
            method = self._integrated_gradients if len(self.fractions) else self._single_gradients
            gradients, changes = method(texts, donors, along, terms)
        # <gradient, change> over d_head
        return [torch.stack([(g * c).sum(-1) for g, c in zip(gradients, changes, strict=True)], 1)]

    def _single_gradients(
        self, texts: Texts, donors: Tensor, along: Tensor, terms: PositionTerms
    ) -> tuple[Sequence[Tensor], list[Tensor]]:
        """The gradient at the recipient's z, and the change to the donor's z, by layer. `row head
        d_head` each
        """
        pushes, changes = [], []
        for step in run_at_word(self.weights, texts, self.depth, terms):
            if step.layer in self.layers:
                recipient_z = step.at_read_position(step.z)[:, 0]
                # Zeros that are added to z, because z itself is not a leaf of the graph.
                push = torch.zeros_like(recipient_z, requires_grad=True)
                step.z = _add_at_word(step, push)
                pushes.append(push)
                changes.append(donors[:, step.layer] - recipient_z.detach())
        return torch.autograd.grad(self._read(step, along), pushes), changes

    def _integrated_gradients(
        self, texts: Texts, donors: Tensor, along: Tensor, terms: PositionTerms
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The gradient averaged over the steps to the donor's z, and the change, by layer. `row
        head d_head` each

        Every step is a variant of the run.
        """
        tree, pushes, changes = [], [], []
        variants = 1  # the unchanged one
        for layer in range(self.depth):
            is_new = torch.zeros(variants, dtype=torch.bool)
            parent = torch.arange(variants)
            if layer in self.layers:
                count = len(self.fractions)
                is_new = torch.cat([is_new, torch.ones(count, dtype=torch.bool)])
                parent = torch.cat([parent, torch.zeros(count, dtype=torch.long)])
            edited = is_new[:, None].expand(-1, self.weights.shape[1])
            tree.append(Branch(parent, edited, parent))
            variants = len(parent)

        def step_values(layer: int, recipient_z: Tensor) -> Tensor:
            """z at the midpoint of every step. `row head d_head -> row variant head d_head`"""
            change = donors[:, layer] - recipient_z.detach()
            fractions = self.fractions.to(change)[:, None, None]  # step head d_head
            shape = (len(recipient_z), len(fractions), *recipient_z.shape[1:])
            push = torch.zeros(shape).to(recipient_z).requires_grad_()
            pushes.append(push)
            changes.append(change)
            steps = recipient_z[:, None].detach() + fractions * change[:, None] + push
            # Earlier variants are not edited in this layer.
            earlier = len(tree[layer].parent) - len(fractions)
            unused = steps.new_zeros(len(recipient_z), earlier, *recipient_z.shape[1:])
            return torch.cat([unused, steps], dim=1)

        edits = Edits(Z, tree, step_values)
        for step in run_at_word(self.weights, texts, self.depth, terms, edits=edits):
            pass
        by_step = torch.autograd.grad(self._read(step, along), pushes)
        return [of_layer.mean(1) for of_layer in by_step], changes

    def _read(self, step: Step, along: Tensor) -> Tensor:
        """The sum of M over rows and variants. Its gradient separates them."""
        resid = step.at_read_position(step.resid_post)
        if self.after_norm:
            resid = forward.unembedding_input(self.weights, resid)
        return (resid * along[:, None]).sum()


def _add_at_word(step: Step, push: Tensor) -> Tensor:
    """z of a step with `push` added at the word.

    `batch head d_head -> batch 1 live head d_head`
    """
    count = step.z.shape[2]  # live positions
    if count == 1:
        return step.z + push[:, None, None]
    assert step.run.edit_at is not None
    is_word = torch.arange(count, device=push.device) == step.run.edit_at[:, None]  # batch live
    return step.z + is_word[:, None, :, None, None] * push[:, None, None]
