"""The loop over blocks (`probe.model.blocks`): unchanged runs, and variants of a run in which
heads, mixers or MLPs get a donor's value. `probe check` runs it, too.

A run yields one `Step` per block. A step computes a quantity when it is first read, by a reader or
by the next block. So a run costs only what its reader asks for: if that is queries and keys, the
last block computes neither attention nor MLP.

A variant consists of the `live` positions of a text. The positions before them are the same in all
variants of a text, and their keys and values are given. Variants form a tree: two sets of edits are
the same variant up to the first block in which they differ.

    batch            the texts that are run together; in a run with `shared`, their prefixes
    variant          the variants of each text in one block
    live             the positions of a text that are run
    row, pos         whole texts and their positions
    prefix           the different prefixes of whole texts
    unit             what can be edited in one block: heads; or 1, the mixer or the MLP
    edit_set         the sets of units that are edited together; a head set of `swap_sets` holds the
                     heads that are kept, and its complement is an edit set
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from probe.model import blocks, forward, kept_keys
from probe.model.blocks import KeysValues, Past, PositionTerms, Projected
from probe.model.weights import Block, Weights
from probe.side_by_side import unlocked_property


class TargetText(NamedTuple):
    """The token ids of a text, and the position at which its word is read.

    Example:
        >>> from probe.model.variants import TargetText
        >>> tokens = probe.tokenize("tiny-senses", "The bank of the river")
        >>> TargetText(tokens.ids, tokens.positions_of("bank")[-1]).at
        2
    """

    ids: tuple[int, ...]
    at: int


# The sites of a block that can be edited.
Z = "z"  # the mean of values that each head weights by attention, before W_O: `head d_head`
ATTN_OUT = "attn_out"  # what all heads, or the mixer, write: `d_model`
HIDDEN = "hidden"  # the activations of the MLP: `d_mlp`

# Called as `donor(layer, unchanged)` with the unchanged run's value at the edited position, `batch
# ...`. Returns the value that is put in, `batch variant ...`, a variant of 1 if all get the same.
DonorValue = Callable[[int, Tensor], Tensor]
# The stacks of an encoder-decoder, "encoder", "decoder" and "cross".
Stacks = Mapping[str, Weights]


# --- which variants there are ---------------------------------------------------------------------


class Branch(NamedTuple):
    """How variants branch in one block."""

    parent: Tensor  # variant: its number among the variants of the block before
    edited: Tensor  # variant unit: True where the donor's value is put in
    variant_of: Tensor  # edit_set: the variant that each edit set belongs to after this block


def branches(edited: Tensor) -> list[Branch]:
    """How variants branch in each block. Variant 0 is always the unchanged run.

    edited: the units that each edit set edits, `edit_set layer unit`
    """
    unchanged = edited.new_zeros(1, *edited.shape[1:])
    variant_of = torch.zeros(1 + len(edited), dtype=torch.long, device=edited.device)
    tree = []
    for units in torch.cat([unchanged, edited]).unbind(1):
        # Sorted by parent and units, so that the variant without any edit comes first.
        parent_and_units = torch.cat([variant_of[:, None], units.long()], dim=1)
        distinct, variant_of = torch.unique(parent_and_units, dim=0, return_inverse=True)
        tree.append(Branch(distinct[:, 0], distinct[:, 1:].bool(), variant_of[1:]))
    return tree


class Edits(NamedTuple):
    """The variants of a run, and the values that are put in."""

    site: str  # Z, ATTN_OUT or HIDDEN
    tree: Sequence[Branch]  # one of each block
    donor: DonorValue


def patch(recipient: Tensor, donor: Tensor, edited: Tensor) -> Tensor:
    """The donor's values in the edited units, and the recipient's values in all others.

    Shape: `... unit d, ... unit d, ... unit -> ... unit d`
    """
    return torch.where(edited[..., None], donor, recipient)


# --- prefixes that several texts share ------------------------------------------------------------


class Prefixes(NamedTuple):
    """The different prefixes of equally long texts.

    A causal model runs each prefix once, because a position depends only on the tokens up to it. In
    such a run, each prefix is a text of the batch with one live position, its end.
    """

    first_end: Tensor  # prefix: where each first ends in the flattened texts
    pos: Tensor  # prefix: the position at which each ends
    number: Tensor  # row pos: the number of the prefix that ends there

    def at_ends(self, x: Tensor) -> Tensor:
        """The values at the end of each prefix.

        Shape: `row 1 pos ... -> prefix 1 1 ...`
        """
        return x.flatten(0, 2)[self.first_end, None, None]

    def everywhere(self, x: Tensor) -> Tensor:
        """The values at every position of every text.

        Shape: `prefix 1 1 ... -> row 1 pos ...`
        """
        return x[:, 0, 0][self.number][:, None]

    def heads_everywhere(self, x: Tensor) -> Tensor:
        """Queries, keys or values at every position of every text.

        Shape: `prefix 1 head 1 d_head -> row 1 head pos d_head`
        """
        return x[:, 0, :, 0][self.number].transpose(1, 2)[:, None]


def prefixes(weights: Weights, rows: Sequence[Sequence[int]]) -> Prefixes | None:
    """The prefixes of equally long rows of token ids; None for a model that reads both ways,
    where texts share nothing.
    """
    if not weights.causal:
        return None
    # The key of a prefix: the number of the prefix without its last token, and that token.
    number_of: dict[tuple[int, int], int] = {}
    first_end: list[int] = []
    positions: list[int] = []
    numbers: list[list[int]] = []
    for index, row in enumerate(rows):
        of_row = []
        shorter = -1
        for pos, token in enumerate(row):
            number = number_of.setdefault((shorter, token), len(number_of))
            if number == len(first_end):
                first_end.append(index * len(row) + pos)
                positions.append(pos)
            of_row.append(number)
            shorter = number
        numbers.append(of_row)
    return Prefixes(
        *(
            torch.tensor(values, dtype=torch.long, device=weights.device)
            for values in (first_end, positions, numbers)
        )
    )


# --- the loop -------------------------------------------------------------------------------------


class Cross(NamedTuple):
    """Cross-attention, between the self-attention and the MLP of every block."""

    weights: Weights
    memory: Sequence[KeysValues]  # the keys and values that each block reads: batch head key_pos d


@dataclass(frozen=True, eq=False)
class Run:
    """What is the same in every block of a run."""

    weights: Weights
    terms: PositionTerms
    depth: int  # how many blocks are run
    shared: Prefixes | None = None  # of an unchanged run of whole texts
    edits: Edits | None = None
    edit_at: Tensor | None = None  # batch: the live position that is edited
    read_at: Tensor | None = None  # batch: the live position that is read; None for all of them
    cross: Cross | None = None  # whose heads are then the ones that are edited

    def steps(
        self, entering: Tensor, past: Iterable[Past | None] | None = None
    ) -> "Iterator[Step]":
        """The blocks, one after the other.

        entering: the stream that enters the first block, `batch variant live d_model`
        past: of each block, what the live positions read of those before them; None if there are
            none. The batch can be a multiple of the rows of these: then as many consecutive texts
            share one row.
        """
        step = None
        by_layer = [None] * self.depth if past is None else past
        for layer, past_of_layer in zip(range(self.depth), by_layer, strict=True):
            resid = entering if step is None else step.resid_post
            step = Step(self, layer, resid, past_of_layer)
            yield step


@dataclass(eq=False)
class Step:
    """One block of a run. Each quantity is computed when it is first read.

    The order, with the sites that can be edited in brackets:

        resid_pre -> q, k, v -> [Z] -> write -> [ATTN_OUT] -> resid_mid -> hidden -> [HIDDEN]
        -> resid_post

    Variants branch at the edited site: quantities before it have the variants that enter the block,
    and the site and all quantities after it have the variants of the block. From that site on (in
    an unedited run, from Z on), the last block is computed only at the position that is read, so
    `live` is 1.
    """

    run: Run
    layer: int
    resid_pre: Tensor  # batch variant live d_model, of the variants that enter
    past: Past | None

    @property
    def block(self) -> Block:
        """The weights of the block."""
        return self.run.weights.blocks[self.layer]

    @property
    def branch(self) -> Branch:
        """How variants branch in the block, in a run with edits."""
        assert self.run.edits is not None
        return self.run.edits.tree[self.layer]

    @unlocked_property
    def projected(self) -> Projected:
        """Queries, keys and values of the variants that enter, of a layer with attention.

        Shape: `batch variant head live d_head`; in a run of prefixes `row 1 head pos d_head`

        `z` releases them, because nothing later needs them and they are large. If they are read
        again, they are computed again.
        """
        run = self.run
        if run.shared is not None:
            pos = run.shared.pos[:, None, None]
            projected = blocks.project(run.weights, self.block, self.resid_pre, run.terms, pos)
            return projected.map(run.shared.heads_everywhere)
        start = 0 if self.past is None else self.past[0].shape[-2]
        end = start + self.resid_pre.shape[2]
        pos = torch.arange(start, end, device=run.weights.device)[None, None]
        return blocks.project(run.weights, self.block, self.resid_pre, run.terms, pos)

    @unlocked_property
    def mixer_input(self) -> Tensor:
        """What the mixer of a layer without attention reads.

        Shape: `batch variant live d_model`; in a run of prefixes `row 1 pos d_model`
        """
        x = blocks.attention_input(self.block, self.resid_pre, self.run.weights.config)
        return x if self.run.shared is None else self.run.shared.everywhere(x)

    @property
    def read_later(self) -> Past:
        """What later positions read of the live ones, of the first variant."""
        if self.block.mixer is not None:
            return (self.mixer_input[:, 0],)
        return self.projected.k[:, 0], self.projected.v[:, 0]

    @unlocked_property
    def z(self) -> Tensor:
        """The mean of values that each head weights by attention, before W_O; of cross-attention if
        the run has it.

        Shape: `batch variant live head d_head`
        """
        cross = self.run.cross
        if cross is None:
            return self._edited(Z, self._attend())
        block = cross.weights.blocks[self.layer]
        memory = cross.memory[self.layer]
        return self._edited(Z, blocks.cross_attend(cross.weights, block, self._stream, memory))

    @unlocked_property
    def resid_mid(self) -> Tensor:
        """The stream that the MLP's write is added to.

        Shape: `batch variant live d_model`
        """
        return self._branched(HIDDEN, self._after_attention)

    @property
    def mlp_input(self) -> Tensor:
        """The stream that the MLP reads, before an edit at HIDDEN.

        Shape: `batch variant live d_model`
        """
        if not self.run.weights.config.family.parallel_attn_mlp:
            return self._after_attention
        return self._branched(ATTN_OUT, self._branched(Z, self.resid_pre))

    @unlocked_property
    def hidden(self) -> Tensor:
        """The activations of the MLP.

        Shape: `batch variant live d_mlp`
        """
        return self._edited(HIDDEN, blocks.activate(self.run.weights, self.block, self.mlp_input))

    @unlocked_property
    def resid_post(self) -> Tensor:
        """The stream after the block.

        Shape: `batch variant live d_model`
        """
        return blocks.after_mlp(self.run.weights, self.block, self.resid_mid, self.hidden)

    def at_read_position(self, x: Tensor) -> Tensor:
        """A quantity of this step at the position that is read.

        Shape: `batch variant live ... -> batch variant ...`
        """
        return x[:, :, 0] if x.shape[2] == 1 else _at(x, self.run.read_at)

    def everywhere(self, x: Tensor) -> Tensor:
        """A quantity of a run of whole texts, at every position.

        Shape: `batch 1 live ... -> row pos ...`
        """
        return (x if self.run.shared is None else self.run.shared.everywhere(x))[:, 0]

    def _attend(self) -> Tensor:
        """z of self-attention, or of the mixer, of the variants that enter.

        Shape: `batch variant live head d_head`
        """
        run = self.run
        if self.block.mixer is not None:
            x = self._variants_of_one_row(self.mixer_input)
            z = blocks.mix_variants(self.block, x, self.past)
        else:
            projected = self.projected.map(self._variants_of_one_row)
            del self.projected
            z = blocks.attend_variants(run.weights, self.block, projected, self.past, run.terms)
        # Back to the texts of the batch.
        z = z.unflatten(1, (-1, self.resid_pre.shape[1])).flatten(0, 1)
        return z if run.shared is None else run.shared.at_ends(z)

    def _variants_of_one_row(self, x: Tensor) -> Tensor:
        """A quantity in which texts that share a row of `past` are variants of one text.

        Shape: `batch variant ... -> row variant ...`
        """
        rows = len(x) if self.past is None else len(self.past[0])
        return x.unflatten(0, (rows, -1)).flatten(1, 2)

    @unlocked_property
    def _stream(self) -> Tensor:
        """The stream that the write of z is added to, before an edit.

        Shape: `batch variant live d_model`
        """
        if self.run.cross is None:
            return self.resid_pre
        return blocks.after_attention(self.run.weights, self.block, self.resid_pre, self._attend())

    @unlocked_property
    def _after_attention(self) -> Tensor:
        """The stream after the write of z, before an edit at HIDDEN.

        Shape: `batch variant live d_model`
        """
        weights = self.run.weights if self.run.cross is None else self.run.cross.weights
        block = weights.blocks[self.layer]
        stream = self._branched(ATTN_OUT, self._branched(Z, self._stream))
        if self._edit_site != ATTN_OUT:
            return blocks.after_attention(weights, block, stream, self.z)
        write = self._edited(ATTN_OUT, blocks.merge_heads(block, self.z))
        writer = blocks.attention_writer(weights, block)
        return blocks.add_write(weights.config, writer, stream, write)

    @property
    def _edit_site(self) -> str | None:
        """The site at which variants branch; None in an unedited run."""
        return None if self.run.edits is None else self.run.edits.site

    def _edited(self, site: str, x: Tensor) -> Tensor:
        """A quantity at a site after branching and editing, if this is the edited site, and after
        the cut of the last block, if it is cut here.

        Shape: `batch variant live ...`
        """
        return self._cut(site, self._edit(x) if site == self._edit_site else x)

    def _branched(self, site: str, x: Tensor) -> Tensor:
        """The stream with the variants and positions that a quantity has after a site.

        Shape: `batch variant live d_model`

        The stream has the variants that enter the block, and what is edited at the site has the
        variants of the block, so the stream is repeated for them before the two are added.
        """
        x = self._cut(site, x)
        return x[:, self.branch.parent] if site == self._edit_site else x

    def _edit(self, x: Tensor) -> Tensor:
        """The quantity at the edited site, with the donor's values in the variants that are edited.

        Shape: `batch variant live ...`
        """
        assert self.run.edits is not None
        parent, edited, _ = self.branch
        if not edited.any():
            return x[:, parent]
        recipient = x[:, :, 0] if x.shape[2] == 1 else _at(x, self.run.edit_at)
        donor = self.run.edits.donor(self.layer, recipient[:, 0])
        if self.run.edits.site == Z:
            recipient = patch(recipient[:, parent], donor, edited)
        else:  # one unit, which has no axis
            recipient = patch(recipient[:, parent, None], donor[:, :, None], edited)[:, :, 0]
        if x.shape[2] == 1:
            return recipient[:, :, None]
        x = x[:, parent]
        x[torch.arange(len(x), device=x.device), :, self.run.edit_at] = recipient
        return x

    def _cut(self, site: str, x: Tensor) -> Tensor:
        """A quantity only at the position that is read, if the last block is cut at this site.

        Shape: `batch variant live ...`
        """
        is_last = self.layer == self.run.depth - 1
        if site != (self._edit_site or Z) or not is_last:
            return x
        if self.run.read_at is None or x.shape[2] == 1:
            return x
        return _at(x, self.run.read_at)[:, :, None]


def _at(x: Tensor, position: Tensor | None) -> Tensor:
    """One live position of each text of the batch.

    Shape: `batch variant live ..., batch -> batch variant ...`
    """
    assert position is not None
    return x[torch.arange(len(x), device=x.device), :, position]


# --- runs of texts --------------------------------------------------------------------------------


def run_texts(
    weights: Weights, rows: Sequence[Sequence[int]], depth: int, terms: PositionTerms
) -> Iterator[Step]:
    """The unchanged run of equally long rows of token ids, at every position."""
    ids = torch.tensor(rows, dtype=torch.long, device=weights.device)
    shared = prefixes(weights, rows)
    entering = forward.embed(weights, ids)[:, None]
    if shared is not None:
        entering = shared.at_ends(entering)
    return Run(weights, terms, depth, shared).steps(entering)


def run_past(
    weights: Weights, rows: Sequence[Sequence[int]], depth: int, terms: PositionTerms
) -> Iterator[Past]:
    """What later positions read of equally long rows of token ids, block by block."""
    for step in run_texts(weights, rows, depth, terms):
        yield step.read_later


def run_at_word(
    weights: Weights,
    texts: Sequence[TargetText],
    depth: int,
    terms: PositionTerms,
    *,
    edits: Edits | None = None,
    tokens: Tensor | None = None,
) -> Iterator[Step]:
    """Run equally long texts, edited and read at the word.

    edits: as for `Run`
    tokens: ids of tokens that replace the word, up to and including its last token, one variant
        each, `variant token`; cannot be combined with `edits`

    A causal model runs only the word, where texts end, against the keys and values of the positions
    before it. A model that reads both ways runs every position.

    Everything before the word is run once for texts that differ only in the word, such as one
    sentence with several nouns. If each sentence comes with the same number of nouns, one after the
    other, they also share keys and values.
    """
    assert tokens is None or edits is None
    width = 1 if tokens is None else tokens.shape[1]
    ids = torch.tensor([text.ids for text in texts], device=weights.device)
    start = ids.shape[1] - width if weights.causal else 0
    at = torch.tensor([text.at - start for text in texts], device=weights.device)
    live_ids = ids[:, None, start:]  # row variant live
    if tokens is not None:
        live_ids = live_ids.repeat(1, len(tokens), 1)
        row = torch.arange(len(live_ids), device=weights.device)
        for offset in range(width):
            live_ids[row, :, at - width + 1 + offset] = tokens[:, offset]
    past: Iterable[Past] | None = None
    if weights.causal:
        earlier = [text.ids[:start] for text in texts]
        once = earlier[:: rows_alike(earlier)]
        past = kept_keys.past_of_rows(
            weights, once, depth, lambda rows, depth: run_past(weights, rows, depth, terms)
        )
    run = Run(weights, terms, depth, edits=edits, edit_at=at, read_at=at)
    return run.steps(forward.embed(weights, live_ids, start), past)


def rows_alike(rows: Sequence[tuple[int, ...]]) -> int:
    """The number of equal rows in each group of consecutive equal rows; 1 if the groups differ in
    size.

    Example:
        >>> rows_alike([(1, 2), (1, 2), (1, 3), (1, 3)])
        2
    """
    counts = {len(list(group)) for _, group in groupby(rows)}
    return counts.pop() if len(counts) == 1 else 1


# --- encoder-decoders -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Decoded:
    """A decoder's run over a target, for several outputs of an encoder, as far as the last position
    needs it: an entry for each layer, and the logits there.

    entering: `batch 1 1 d_model`
    self_attention: what the last position reads of the target before it
    cross_attention: keys and values of the source, `batch head key_pos d_head`
    z: `batch layer head d_head`, of cross-attention at the last position
    logits: `batch d_vocab`
    """

    entering: Tensor
    self_attention: Sequence[Past]
    cross_attention: Sequence[KeysValues]
    z: Tensor
    logits: Tensor


def encode(stacks: Stacks, ids: Sequence[int]) -> Tensor:
    """The encoder's output for a source, which the decoder reads. `-> 1 key_pos d_model`"""
    encoder = stacks["encoder"]
    terms = blocks.position_terms(encoder, len(ids))
    for step in run_texts(encoder, [ids], len(encoder.blocks), terms):
        last = step
    return forward.final_norm(encoder, last.everywhere(last.resid_post))


def run_last(stacks: Stacks, decoded: Decoded, edits: Edits) -> "Iterator[Step]":
    """The decoder's run of the last position of a target, with edited heads of cross-attention."""
    decoder = stacks["decoder"]
    n = decoded.self_attention[0][0].shape[-2] + 1
    last = torch.zeros(len(decoded.entering), dtype=torch.long, device=decoder.device)
    run = Run(
        decoder,
        blocks.position_terms(decoder, n),
        depth=len(decoder.blocks),
        edits=edits,
        edit_at=last,
        read_at=last,
        cross=Cross(stacks["cross"], decoded.cross_attention),
    )
    return run.steps(decoded.entering, decoded.self_attention)


def decode(stacks: Stacks, ids: Sequence[int], memory: Tensor) -> Decoded:
    """The decoder over `ids`.

    memory: `batch key_pos d_model`, outputs of the encoder
    """
    decoder = stacks["decoder"]
    cross = stacks["cross"]
    source = [blocks.memory_read(block, memory, cross.config) for block in cross.blocks]
    run = Run(
        decoder,
        blocks.position_terms(decoder, len(ids)),
        depth=len(decoder.blocks),
        read_at=torch.full((len(memory),), len(ids) - 1, device=decoder.device),
        cross=Cross(cross, source),
    )
    entering = forward.embed(decoder, torch.tensor([[ids]], device=decoder.device))
    entering = entering.expand(len(memory), -1, -1, -1)
    self_attention = []
    z = []
    for step in run.steps(entering):
        self_attention.append(tuple(part[..., :-1, :] for part in step.read_later))
        z.append(step.at_read_position(step.z)[:, 0])
        last = step
    logits = forward.unembed(decoder, last.at_read_position(last.resid_post)[:, 0])
    return Decoded(entering[:, :, -1:], self_attention, source, torch.stack(z, dim=1), logits)
