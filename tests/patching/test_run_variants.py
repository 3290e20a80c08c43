"""The loop over blocks: its variants, edits at every site compared with whole hooked forwards,
texts that share everything before the word, and quantities that a run does not compute.
"""

from collections import Counter

import pytest
import torch
from hooked_runs import EACH, bound, edit_at, model_of_kind, random_rows, read_all, run_with_swaps

from probe.model import blocks, forward, variants
from probe.model.load import read_weights
from probe.model.variants import ATTN_OUT, HIDDEN, Edits, Run, TargetText, Z
from probe.patching import heads, tokens


def test_sets_that_differ_in_later_blocks_only_are_one_variant_until_then():
    """Two blocks of two units. Before the first block there is only the unchanged run. In the
    first block a and b are one variant, and c is still the unchanged run.
    """
    a, b, c = [[1, 0], [0, 0]], [[1, 0], [0, 1]], [[0, 0], [1, 0]]
    first, second = variants.branches(torch.tensor([a, b, c], dtype=torch.bool))
    assert first.parent.tolist() == [0, 0]
    assert first.edited.tolist() == [[False, False], [True, False]]
    assert first.variant_of.tolist() == [1, 1, 0]
    # The unchanged run, c, and the two branches of the first block's second variant.
    assert second.parent.tolist() == [0, 0, 1, 1]
    assert second.edited.tolist() == [[False, False], [True, False], [False, False], [False, True]]
    assert second.variant_of.tolist() == [2, 3, 1]


# --- edits ----------------------------------------------------------------------------------------

START, AT, READ = 2, 1, 3  # of eight tokens: where the live ones begin, and two live positions


def random_tensor(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def hooked_edits(weights, site, layer, donor, at):
    """The same edit of a block, made by hooks."""
    if site == Z:
        return [(layer, "z", edit_at(at, donor))]
    if site == ATTN_OUT:
        return [(layer, "attn_out", edit_at(at, donor))]
    block = weights.blocks[layer]
    write = donor @ block.w_hidden
    return [(layer, "mlp_out", edit_at(at, write if block.b_out is None else write + block.b_out))]


@pytest.mark.parametrize("site", [Z, ATTN_OUT, HIDDEN])
@pytest.mark.parametrize("kind", EACH)
def test_an_edit_at_one_position_is_read_at_another_as_in_a_whole_forward(kind, site):
    """Every block is edited alone, and all of them together, in two texts at once."""
    model = model_of_kind(kind)
    weights = read_weights(model)
    depth, n_heads, d_model, d_head = weights.shape
    ids = torch.randint(5, 300, (2, 8), generator=torch.Generator().manual_seed(0))
    start = START if weights.causal else 0
    donors = {
        Z: random_tensor(2, depth, n_heads, d_head),
        ATTN_OUT: random_tensor(2, depth, d_model),
        HIDDEN: random_tensor(2, depth, weights.blocks[0].d_mlp),
    }[site]
    units = n_heads if site == Z else 1
    edited = torch.cat([torch.eye(depth), torch.ones(1, depth)]).bool()  # set layer
    tree = variants.branches(edited[..., None].expand(-1, -1, units))
    terms = blocks.position_terms(weights, 8)
    past = None
    if weights.causal:
        past = variants.run_past(weights, ids[:, :start].tolist(), depth, terms)
    run = Run(
        weights,
        terms,
        depth,
        edits=Edits(site, tree, lambda layer, base: donors[:, layer, None]),
        edit_at=torch.tensor([AT, AT]),
        read_at=torch.tensor([READ, READ - 1]),
    )
    entering = forward.embed(weights, ids[:, None, start:], start)
    for step in run.steps(entering, past):
        stream = step.at_read_position(step.resid_post)[:, step.branch.variant_of]
        for row, text in enumerate(ids.tolist()):
            for number, layers in enumerate(edited):
                edits = []
                for layer in layers.nonzero()[:, 0].tolist():
                    edits += hooked_edits(weights, site, layer, donors[row, layer], start + AT)
                plain = read_all(model, text, ["resid_post"], edits)["resid_post"][step.layer]
                expected = plain[start + READ - row]
                error = (stream[row, number] - expected).abs().max()
                assert error <= 10 * bound(model) * expected.abs().max()


def test_a_quantity_is_the_same_in_whatever_order_it_is_read():
    """Attention releases queries, keys and values, and the MLP's write is added to its stream."""
    weights = read_weights(model_of_kind("gpt2"))
    for step in variants.run_texts(
        weights, [[5, 6, 7], [5, 6, 8]], 2, blocks.position_terms(weights, 3)
    ):
        projected = [part.clone() for part in step.projected[:3]]
        resid_mid = step.resid_mid.clone()
        assert not torch.equal(step.resid_post, resid_mid)
        assert torch.equal(step.resid_mid, resid_mid)
        for part, before in zip(step.projected[:3], projected, strict=True):
            assert torch.equal(part, before)


# --- texts that share everything before the word --------------------------------------------------

NOUNS = (7, 90, 201)


def counted_rows(monkeypatch):
    """The number of texts in each run before the word."""
    run_past = variants.run_past
    counts = []

    def counting(weights, rows, *options):
        counts.append(len(rows))
        return run_past(weights, rows, *options)

    monkeypatch.setattr(variants, "run_past", counting)
    return counts


@pytest.mark.parametrize(("at_once", "sentences_run"), [(5, [1, 1, 1, 1]), (7, [1, 2, 1])])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "mixtral", "lfm2", "gpt_neox"])
def test_nouns_in_one_sentence_share_the_text_before_them_and_have_separate_donors(
    kind, at_once, sentences_run, monkeypatch
):
    """Two of the four sentences have equal length. A batch never separates the three nouns of a
    sentence.
    """
    model = model_of_kind(kind)
    weights = read_weights(model)
    sentences = [text for text in random_rows(model) if text.at > 0]
    texts = [
        TargetText((*text.ids[: text.at], noun), text.at) for text in sentences for noun in NOUNS
    ]
    depth, n_heads, d_model, d_head = weights.shape
    donors = random_tensor(len(texts), depth, n_heads, d_head)
    directions = random_tensor(len(texts), depth, d_model, seed=1)
    swaps_and_base = 1 + int(weights.has_heads.sum()) * n_heads
    numbers = at_once * swaps_and_base * weights.blocks[0].d_mlp
    monkeypatch.setattr(heads, "BATCH_NUMBERS", numbers)
    counts = counted_rows(monkeypatch)
    # In another order: texts of the same sentence are still run together.
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(2)).tolist()
    effects = heads.swap_heads(weights, [texts[n] for n in order], donors[order], directions[order])
    assert counts == sentences_run
    with_heads = weights.has_heads.nonzero()[:, 0].tolist()
    for effect, number in zip(effects, order, strict=True):
        swaps = [{}]
        for layer in with_heads:
            swaps += [{(layer, head): donors[number, layer, head]} for head in range(n_heads)]
        base, *rows = run_with_swaps(model, texts[number], swaps)[0].transpose(0, 1)
        change = torch.stack(rows) - base  # swap stage d_model
        expected = (change * directions[number]).sum(-1)
        error = (effect[with_heads].flatten(0, 1) - expected).abs().max()
        assert error <= 10 * bound(model) * expected.abs().max()


def test_sentences_with_unequal_numbers_of_nouns_are_run_too(monkeypatch):
    model = model_of_kind("gpt2")
    weights = read_weights(model)
    ids = [(5, 6, 7, 8), (5, 6, 7, 9), (5, 6, 4, 9)]
    donors = random_tensor(3, 2, *weights.shape[1:2], weights.shape[3])
    directions = random_tensor(2, weights.shape[2], seed=1)
    counts = counted_rows(monkeypatch)
    together = heads.swap_heads(weights, ids, donors, directions)
    assert counts == [3]
    for number, row in enumerate(ids):
        single = heads.swap_heads(weights, [row], donors[[number]], directions)
        torch.testing.assert_close(together[[number]], single, rtol=0, atol=1e-12)


# --- quantities that are not computed -------------------------------------------------------------


def counting(monkeypatch, *names):
    """How often each of some steps of a block is run."""
    counts = Counter()
    for name in names:
        step = getattr(blocks, name)

        def counted(*arguments, name=name, step=step):
            counts[name] += 1
            return step(*arguments)

        monkeypatch.setattr(blocks, name, counted)
    return counts


STEPS = ("project", "attend_variants", "activate", "after_mlp")


def test_a_run_stops_at_the_quantity_that_is_read_from_its_last_block(monkeypatch):
    """The reader takes queries, keys and values; or the stream at the word along a direction; or
    the stream itself.
    """
    weights = read_weights(model_of_kind("gpt2"))
    counts = counting(monkeypatch, *STEPS)
    list(variants.run_past(weights, [[5, 6, 7]], 2, blocks.position_terms(weights, 3)))
    assert [counts[name] for name in STEPS] == [2, 1, 1, 1]
    counts.clear()
    z = random_tensor(1, 2, *weights.shape[1:2], weights.shape[3])
    heads.swap_heads(weights, [[5, 6, 7]], z, random_tensor(1, weights.shape[2]))
    before = [2, 1, 1, 1]
    assert [counts[name] for name in STEPS] == [before[n] + (2, 2, 2, 1)[n] for n in range(4)]
    counts.clear()
    tokens.replace_tokens(weights, [TargetText((5, 6, 7), 2)], [[8]])
    assert [counts[name] for name in STEPS] == [before[n] + 2 for n in range(4)]


def test_after_the_last_attention_an_encoder_is_run_only_at_the_word(monkeypatch):
    weights = read_weights(model_of_kind("bert"))
    sizes = []
    activate = blocks.activate

    def noting(weights, block, resid):
        sizes.append(resid.shape[2])
        return activate(weights, block, resid)

    monkeypatch.setattr(blocks, "activate", noting)
    z = random_tensor(1, 2, *weights.shape[1:2], weights.shape[3])
    text = TargetText((5, 6, 7, 8), 2)
    heads.swap_heads(weights, [text], z, random_tensor(1, weights.shape[2]))
    assert sizes == [4, 1]
