"""The loop over the blocks of the fused forward (`probe.model.fused`): unchanged runs, and variants
of a run in which heads, mixers or MLPs get a donor's value.

A run yields one `Step` per block. A step computes a quantity when it is first read, by a reader or
by the next block. So a run costs only what its reader asks for: if that is queries and keys, the
last block computes neither attention nor MLP.

A variant consists of the `live` positions of a text. The positions before them are the same in all
variants of a text, and their keys and values are given. Variants form a tree: two sets of edits are
the same variant up to the first block in which they differ.

    batch            the texts that are run together
    variant          the variants of each text in one block
    live             the positions of a text that are run
    row, pos         whole texts and their positions
    prefix           the different prefixes of whole texts
    unit             what can be edited in one block: heads; or 1, the mixer or the MLP
    set              the sets of edits that a caller asks for
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from probe.model import forward, fused
from probe.model.fused import KeysValues, PositionTables
from probe.model.tokens import TargetText
from probe.model.weights import Block, Weights
from probe.patching import kept_keys
from probe.progress import worked

# The sites of a block that can be edited.
Z = "z"  # the mean of values that each head weights by attention, before W_O: `head d_head`
ATTN_OUT = "attn_out"  # what all heads, or the mixer, write: `d_model`
HIDDEN = "hidden"  # the activations of the MLP: `d_mlp`

# The donor's value at the site, from the layer and the value in the unchanged run, `batch ...`. `->
# batch variant ...`, a variant of 1 if all variants get the same.
Donor = Callable[[int, Tensor], Tensor]


# --- which variants there are ---------------------------------------------------------------------


class Branch(NamedTuple):
    """How variants branch in one block."""

    parent: Tensor  # variant: the number of the variant of the block before
    edited: Tensor  # variant unit: True where the donor's value is put in
    variant_of: Tensor  # set: the number of the variant that it is so far


def branches(edited: Tensor) -> list[Branch]:
    """How variants branch in each block. Variant 0 is always the unchanged run.

    edited: the units that each set edits, `set layer unit`
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
    donor: Donor


def patch(recipient: Tensor, donor: Tensor, edited: Tensor) -> Tensor:
    """The donor's values in the edited units, and the recipient's values in all others. `...
    unit d, ... unit d, ... unit -> ... unit d`
    """
    return torch.where(edited[..., None], donor, recipient)


# --- prefixes that several texts share ------------------------------------------------------------


class Prefixes(NamedTuple):
    """The different prefixes of equally long texts.

    A causal model runs each prefix once, because a position depends only on the tokens up to it. In
    such a run, each prefix is a text of the batch with one live position, its end.
    """

    first_end: Tensor  # prefix: where each first ends in the flattened texts
    number: Tensor  # row pos: the number of the prefix that ends there

    @property
    def positions(self) -> Tensor:
        """The position at which each ends. `prefix 1 1`"""
        return self.first_end[:, None, None] % max(self.number.shape[1], 1)

    def at_ends(self, x: Tensor) -> Tensor:
        """The values at the end of each prefix. `row 1 pos ... -> prefix 1 1 ...`"""
        return x.flatten(0, 2)[self.first_end, None, None]

    def everywhere(self, x: Tensor) -> Tensor:
        """The values at every position of every text. `prefix 1 1 ... -> row 1 pos ...`"""
        return x[:, 0, 0][self.number][:, None]

    def heads_everywhere(self, x: Tensor) -> Tensor:
        """Queries, keys or values at every position. `prefix 1 head 1 d_head -> row 1 head pos
        d_head`"""
        return x[:, 0, :, 0][self.number].transpose(1, 2)[:, None]


def prefixes(weights: Weights, rows: Sequence[Sequence[int]]) -> Prefixes | None:
    """The prefixes of equally long rows of token ids; None for a model that reads both ways,
    where texts share nothing.
    """
    if not weights.causal:
        return None
    first_end, number = _numbered(rows)
    device = weights.device
    return Prefixes(
        torch.tensor(first_end, dtype=torch.long, device=device),
        torch.tensor(number, dtype=torch.long, device=device),
    )


def _numbered(rows: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Where each different `row[: pos + 1]` first ends in the flattened rows, and for each
    position of each row the number of the prefix that ends there.
    """
    # The key of a prefix: the number of the prefix without its last token, and that token.
    number_of: dict[tuple[int, int], int] = {}
    first_end: list[int] = []
    numbers: list[list[int]] = []
    for index, row in enumerate(rows):
        of_row = []
        shorter = -1
        for pos, token in enumerate(row):
            number = number_of.setdefault((shorter, token), len(number_of))
            if number == len(first_end):
                first_end.append(index * len(row) + pos)
            of_row.append(number)
            shorter = number
        numbers.append(of_row)
    return first_end, numbers


# --- the loop -------------------------------------------------------------------------------------


class Cross(NamedTuple):
    """Cross-attention, between the self-attention and the MLP of every block."""

    weights: Weights
    memory: Sequence[KeysValues]  # the keys and values that each block reads: batch head key_pos d


@dataclass(frozen=True, eq=False)
class Run:
    """What is the same in every block of a run."""

    weights: Weights
    tables: PositionTables
    depth: int  # how many blocks are run
    shared: Prefixes | None = None  # of an unchanged run of whole texts
    edits: Edits | None = None
    edit_at: Tensor | None = None  # batch: the live position that is edited
    read_at: Tensor | None = None  # batch: the live position that is read; None for all of them
    cross: Cross | None = None  # whose heads are then the ones that are edited

    def steps(
        self, entering: Tensor, before: Iterable[KeysValues | None] | None = None
    ) -> "Iterator[Step]":
        """The blocks, one after the other.

        entering: the stream that enters the first block, `batch variant live d_model`
        before: the keys and values of the positions before the live ones, of each block, `text
            kv_head key_pos d_head`; None if there are none. The batch can be a multiple of these
            texts: then as many consecutive rows share the keys and values of one text.
        """
        step = None
        earlier = [None] * self.depth if before is None else before
        for layer, keys_values in zip(range(self.depth), earlier, strict=True):
            resid = entering if step is None else step.resid_post
            step = Step(self, layer, resid, keys_values)
            worked(resid.shape[:-1].numel())
            yield step


@dataclass(eq=False)
class Step:
    """One block of a run. Each quantity is computed when it is first read.

    Variants branch at the site that is edited: quantities before it have the variants that enter
    the block, the site and all quantities after it have the variants of the block. In the last
    block, quantities after the site are computed only at the position that is read, so `live` is 1.
    """

    run: Run
    layer: int
    resid_pre: Tensor  # batch variant live d_model, of the variants that enter
    before: KeysValues | None

    @property
    def block(self) -> Block:
        """The weights of the block."""
        return self.run.weights.blocks[self.layer]

    @property
    def branch(self) -> Branch:
        """How variants branch in the block, in a run with edits."""
        assert self.run.edits is not None
        return self.run.edits.tree[self.layer]

    @cached_property
    def projected(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the variants that enter, rotated for their positions. `batch
        variant head live d_head`, kv_head for two; in a run of prefixes `row 1 head pos d_head`

        They are released once z is computed, so read them before it.
        """
        run = self.run
        start = 0 if self.before is None else self.before[0].shape[-2]
        if run.shared is None:
            end = start + self.resid_pre.shape[2]
            pos = torch.arange(start, end, device=run.weights.device)[None, None]
            return fused.project(run.weights, self.block, self.resid_pre, run.tables, pos)
        pos = run.shared.positions
        q, k, v = fused.project(run.weights, self.block, self.resid_pre, run.tables, pos)
        spread = run.shared.heads_everywhere
        return spread(q), spread(k), spread(v)

    @cached_property
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
        return self._edited(Z, fused.read_memory(cross.weights, block, self._stream, memory))

    @cached_property
    def resid_mid(self) -> Tensor:
        """The stream that the MLP's write is added to. `batch variant live d_model`"""
        return self._branched(HIDDEN, self._after_attention)

    @property
    def mlp_input(self) -> Tensor:
        """The stream that the MLP reads, before an edit at HIDDEN. `batch variant live d_model`"""
        if not self.run.weights.config.family.parallel_attn_mlp:
            return self._after_attention
        return self._branched(ATTN_OUT, self._branched(Z, self.resid_pre))

    @cached_property
    def hidden(self) -> Tensor:
        """The activations of the MLP. `batch variant live d_mlp`"""
        return self._edited(HIDDEN, fused.activate(self.run.weights, self.block, self.mlp_input))

    @cached_property
    def resid_post(self) -> Tensor:
        """The stream after the block. `batch variant live d_model`"""
        return fused.after_mlp(self.run.weights, self.block, self.resid_mid, self.hidden)

    def reading(self, x: Tensor) -> Tensor:
        """A quantity of this step at the position that is read. `batch variant live ... -> batch
        variant ...`"""
        return x[:, :, 0] if x.shape[2] == 1 else _at(x, self.run.read_at)

    def everywhere(self, x: Tensor) -> Tensor:
        """A quantity of a run of whole texts, at every position. `batch 1 live ... -> row pos
        ...`"""
        return (x if self.run.shared is None else self.run.shared.everywhere(x))[:, 0]

    def _attend(self) -> Tensor:
        """z of self-attention, of the variants that enter. `batch variant live head d_head`"""
        run = self.run
        qkv = self.projected
        del self.projected  # nothing after attention needs them, and they are large
        batch, variants = qkv[0].shape[:2]
        sharing = 1 if self.before is None else batch // len(self.before[0])
        if sharing > 1:
            # Attention takes rows with the same positions before them as variants of one text.
            q, k, v = (part.unflatten(0, (-1, sharing)).flatten(1, 2) for part in qkv)
            z = fused.attend_among(run.weights, self.block, (q, k, v), self.before, run.tables)
            return z.unflatten(1, (sharing, variants)).flatten(0, 1)
        z = fused.attend_among(run.weights, self.block, qkv, self.before, run.tables)
        return z if run.shared is None else run.shared.at_ends(z)

    @cached_property
    def _stream(self) -> Tensor:
        """The stream that the write of z is added to, before an edit. `batch variant live
        d_model`"""
        if self.run.cross is None:
            return self.resid_pre
        return fused.after_attention(self.run.weights, self.block, self.resid_pre, self._attend())

    @cached_property
    def _after_attention(self) -> Tensor:
        """The stream after the write of z, before an edit at HIDDEN. `batch variant live
        d_model`"""
        weights = self.run.weights if self.run.cross is None else self.run.cross.weights
        block = weights.blocks[self.layer]
        stream = self._branched(ATTN_OUT, self._branched(Z, self._stream))
        if self._site != ATTN_OUT:
            return fused.after_attention(weights, block, stream, self.z)
        writer = fused.attention_writer(weights, block)
        write = self._edited(ATTN_OUT, writer.write(self.z.flatten(-2)))
        return fused.add_write(weights.config, writer, stream, write)

    @property
    def _site(self) -> str:
        """Where variants branch, and where the last block is cut to the position that is read."""
        return Z if self.run.edits is None else self.run.edits.site

    def _edited(self, site: str, x: Tensor) -> Tensor:
        """A quantity with the donor's values in the variants that are edited at this site;
        unchanged if another site is edited. `batch variant live ...`"""
        if site != self._site:
            return x
        edits = self.run.edits
        if edits is None:
            return self._cut(x)
        parent, edited, _ = self.branch
        if not edited.any():
            return self._cut(x[:, parent])
        recipient = x[:, :, 0] if x.shape[2] == 1 else _at(x, self.run.edit_at)
        donor = edits.donor(self.layer, recipient[:, 0])
        if site == Z:
            recipient = patch(recipient[:, parent], donor, edited)
        else:  # one unit, which has no axis
            recipient = patch(recipient[:, parent, None], donor[:, :, None], edited)[:, :, 0]
        if x.shape[2] == 1:
            return recipient[:, :, None]
        x = x[:, parent]
        x[torch.arange(len(x), device=x.device), :, self.run.edit_at] = recipient
        return self._cut(x)

    def _branched(self, site: str, x: Tensor) -> Tensor:
        """The stream after variants branch at a site; unchanged if another site is edited.

        The stream has the variants that enter the block. What is edited at the site has the
        variants of the block, so the stream is repeated for them before the two are added. Like
        that quantity, it is cut to the position that is read in the last block.

        Shape: `batch variant live d_model`
        """
        if site != self._site:
            return x
        x = self._cut(x)
        return x if self.run.edits is None else x[:, self.branch.parent]

    def _cut(self, x: Tensor) -> Tensor:
        """A quantity only at the position that is read, in the last block. `batch variant live
        ...`"""
        is_last = self.layer == self.run.depth - 1
        if not is_last or self.run.read_at is None or x.shape[2] == 1:
            return x
        return _at(x, self.run.read_at)[:, :, None]


def _at(x: Tensor, position: Tensor | None) -> Tensor:
    """One live position of each text of the batch. `batch variant live ..., batch -> batch variant
    ...`"""
    assert position is not None
    return x[torch.arange(len(x), device=x.device), :, position]


# --- runs of texts --------------------------------------------------------------------------------


def run_texts(
    weights: Weights, rows: Sequence[Sequence[int]], depth: int, tables: PositionTables
) -> Iterator[Step]:
    """The unchanged run of equally long rows of token ids, at every position."""
    ids = torch.tensor(rows, dtype=torch.long, device=weights.device)
    shared = prefixes(weights, rows)
    entering = forward.embed(weights, ids)[:, None]
    if shared is not None:
        entering = shared.at_ends(entering)
    return Run(weights, tables, depth, shared).steps(entering)


def project_texts(
    weights: Weights, rows: Sequence[Sequence[int]], depth: int, tables: PositionTables
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Queries, keys and values of `run_texts`, block by block. `row head pos d_head`; keys and
    values have kv_head
    """
    for step in run_texts(weights, rows, depth, tables):
        q, k, v = step.projected
        yield q[:, 0], k[:, 0], v[:, 0]


def run_at_word(
    weights: Weights,
    texts: Sequence[TargetText],
    depth: int,
    tables: PositionTables,
    *,
    edits: Edits | None = None,
    tokens: Tensor | None = None,
) -> Iterator[Step]:
    """The run of equally long texts, edited and read at the word, at the positions that a change at
    the word can reach: the word itself in a causal model, where texts end with it, and all of them
    in a model that reads both ways.

    Everything before the word is run once for texts that differ only in the word, such as one
    sentence with several nouns. If each sentence comes with the same number of nouns, one after the
    other, they also share keys and values.

    edits: as for `Run`
    tokens: other tokens in the word's place, up to and including its last one, each a variant,
        `variant token`. Not together with edits: give texts with other words instead.
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
    before: Iterable[KeysValues] | None = None
    if weights.causal:
        earlier = [text.ids[:start] for text in texts]
        once = earlier[:: rows_alike(earlier)]
        before = kept_keys.keys_values(
            weights,
            once,
            depth,
            lambda rows, depth: ((k, v) for _, k, v in project_texts(weights, rows, depth, tables)),
        )
    run = Run(weights, tables, depth, edits=edits, edit_at=at, read_at=at)
    return run.steps(embed_live(weights, live_ids, start), before)


def embed_live(weights: Weights, ids: Tensor, start: int) -> Tensor:
    """The stream of tokens that enters the first block, after `start` earlier tokens. `... live
    -> ... live d_model`
    """
    pos = torch.arange(start, start + ids.shape[-1], device=weights.device)
    parts = forward.embedding_parts(weights, ids, pos)
    return forward.embedding_norm(weights, forward.sum_embeddings(parts))


def rows_alike(rows: Sequence[tuple[int, ...]]) -> int:
    """The number of equal rows in each group of consecutive equal rows; 1 if the groups differ in
    size.

    Example:
        >>> rows_alike([(1, 2), (1, 2), (1, 3), (1, 3)])
        2
    """
    counts = {len(list(group)) for _, group in groupby(rows)}
    return counts.pop() if len(counts) == 1 else 1
