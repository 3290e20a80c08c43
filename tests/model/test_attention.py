"""The formulas against torch's own implementations, and the identities that hold for any numbers."""

import math

import pytest
import torch
from torch.nn import functional

from probe.model import attention

HEADS, POS, D_HEAD, D_MODEL = 3, 7, 5, 11
EXACT = {"rtol": 0, "atol": 1e-12}


@pytest.fixture
def numbers():
    """A maker of seeded float64 normals, so that no two tensors of a test are alike."""
    generator = torch.Generator().manual_seed(7)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def attend(q, k, v):
    return attention.mix(attention.softmax(attention.mask(attention.scores(q, k))), v)


@pytest.mark.parametrize("leading", [(), (2,), (2, 4)])
def test_attention_is_torchs_scaled_dot_product(numbers, leading):
    q, k, v = (numbers(*leading, HEADS, POS, D_HEAD) for _ in range(3))
    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(attend(q, k, v), expected, **EXACT)


def test_fewer_queries_than_keys_are_the_last_positions(numbers):
    q, k, v = numbers(HEADS, POS, D_HEAD), numbers(HEADS, POS, D_HEAD), numbers(HEADS, POS, D_HEAD)
    torch.testing.assert_close(attend(q[:, -3:], k, v), attend(q, k, v)[:, -3:], **EXACT)


def test_scores_are_divided_by_the_root_of_d_head():
    q = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    k = torch.tensor([[[2.0, 0.0, -1.0, 1.0]]])
    assert attention.scores(q, k).item() == (2 - 3 + 4) / 2  # 2 = sqrt(4)


def test_the_mask_hides_exactly_what_comes_later():
    masked = attention.mask(torch.ones(1, 4, 4))[0]
    for query in range(4):
        for key in range(4):
            assert masked[query, key] == (-math.inf if key > query else 1)


def test_pattern_rows_are_shares_of_one(numbers):
    pattern = attention.softmax(attention.mask(numbers(HEADS, POS, POS) * 30))
    torch.testing.assert_close(pattern.sum(-1), torch.ones(HEADS, POS, dtype=torch.float64), **EXACT)
    assert (pattern >= 0).all()
    assert (pattern.triu(1) == 0).all()
    assert not torch.allclose(pattern.sum(-2), torch.ones(HEADS, POS, dtype=torch.float64), atol=0.1)


def test_softmax_survives_scores_that_would_overflow(numbers):
    scores = numbers(HEADS, POS, POS)
    torch.testing.assert_close(attention.softmax(scores + 1e6), attention.softmax(scores), rtol=0, atol=1e-9)
    torch.testing.assert_close(attention.softmax(scores), functional.softmax(scores, dim=-1), **EXACT)


@pytest.mark.parametrize("leading", [(), (2,)])
def test_projection_is_one_matrix_product_per_head(numbers, leading):
    x, weight, bias = numbers(*leading, POS, D_MODEL), numbers(HEADS, D_MODEL, D_HEAD), numbers(HEADS, D_HEAD)
    projected = attention.project(x, weight, bias)
    assert projected.shape == (*leading, HEADS, POS, D_HEAD)
    for head in range(HEADS):
        expected = functional.linear(x, weight[head].T, bias[head])
        torch.testing.assert_close(projected[..., head, :, :], expected, **EXACT)


def test_concatenated_heads_times_w_o_are_the_sum_of_their_writes(numbers):
    z, w_o = numbers(HEADS, POS, D_HEAD), numbers(HEADS, D_HEAD, D_MODEL)
    writes = attention.write(z, w_o)
    concatenated = torch.cat([z[head] for head in range(HEADS)], dim=-1) @ torch.cat(list(w_o))
    torch.testing.assert_close(writes.sum(0), concatenated, **EXACT)
    for head in range(HEADS):
        torch.testing.assert_close(writes[head], z[head] @ w_o[head], **EXACT)


def test_writes_by_source_sum_to_the_write(numbers):
    pattern, v, w_o = (
        attention.softmax(numbers(HEADS, POS)),
        numbers(HEADS, POS, D_HEAD),
        numbers(HEADS, D_HEAD, D_MODEL),
    )
    by_source = attention.write_by_source(pattern, v, w_o)
    whole = attention.write(attention.mix(pattern.unsqueeze(-2), v), w_o).squeeze(-2)
    torch.testing.assert_close(by_source.sum(-2), whole, **EXACT)
    for head in range(HEADS):
        for source in range(POS):
            expected = pattern[head, source] * (v[head, source] @ w_o[head])
            torch.testing.assert_close(by_source[head, source], expected, **EXACT)


def test_a_later_token_changes_nothing_before_it(numbers):
    q, k, v = (numbers(HEADS, POS, D_HEAD) for _ in range(3))
    changed = [torch.cat([part[:, :-1], numbers(HEADS, 1, D_HEAD)], dim=1) for part in (q, k, v)]
    before, after = attend(q, k, v), attend(*changed)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


@pytest.mark.parametrize("epsilon", [1e-5, 0.3])
def test_layer_norm_is_torchs(numbers, epsilon):
    x, gain, bias = numbers(2, POS, D_MODEL) * 3 + 1, numbers(D_MODEL), numbers(D_MODEL)
    expected = functional.layer_norm(x, (D_MODEL,), gain, bias, epsilon)
    torch.testing.assert_close(attention.layer_norm(x, gain, bias, epsilon), expected, **EXACT)


def test_gelu_is_torchs_tanh_form_and_not_the_other():
    x = torch.linspace(-6, 6, 241, dtype=torch.float64)
    torch.testing.assert_close(attention.gelu_new(x), functional.gelu(x, approximate="tanh"), **EXACT)
    assert (attention.gelu_new(x) - functional.gelu(x)).abs().max() > 1e-4
