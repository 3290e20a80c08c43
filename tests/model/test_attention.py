"""The formulas compared with torch's implementations, and identities that hold for any numbers."""

import math

import pytest
import torch
import transformers
from inside import attention, blocks
from torch.nn import functional
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from probe.model.config import config_from

HEADS, POS, D_HEAD, D_MODEL = 3, 7, 5, 11
EXACT = {"rtol": 0, "atol": 1e-12}


@pytest.fixture
def numbers():
    """A function that makes seeded float64 normals, so that no two tensors of a test are equal."""
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
    q, k, v = (numbers(HEADS, POS, D_HEAD) for _ in range(3))
    torch.testing.assert_close(attend(q[:, -3:], k, v), attend(q, k, v)[:, -3:], **EXACT)


def test_softmax_survives_scores_that_would_overflow(numbers):
    scores = numbers(HEADS, POS, POS)
    pattern = attention.softmax(scores)
    torch.testing.assert_close(attention.softmax(scores + 1e6), pattern, rtol=0, atol=1e-9)
    torch.testing.assert_close(pattern, functional.softmax(scores, dim=-1), **EXACT)


def test_writes_by_source_sum_to_the_write(numbers):
    pattern = attention.softmax(numbers(HEADS, POS))
    v, w_o = numbers(HEADS, POS, D_HEAD), numbers(HEADS, D_HEAD, D_MODEL)
    by_source = attention.write_by_source(pattern, v, w_o)
    whole = attention.write(attention.mix(pattern.unsqueeze(-2), v), w_o).squeeze(-2)
    torch.testing.assert_close(by_source.sum(-2), whole, **EXACT)
    for head in range(HEADS):
        for source in range(POS):
            expected = pattern[head, source] * (v[head, source] @ w_o[head])
            torch.testing.assert_close(by_source[head, source], expected, **EXACT)


@pytest.mark.parametrize("epsilon", [1e-5, 0.3])
def test_layer_norm_is_torchs(numbers, epsilon):
    x, gain, bias = numbers(2, POS, D_MODEL) * 3 + 1, numbers(D_MODEL), numbers(D_MODEL)
    expected = functional.layer_norm(x, (D_MODEL,), gain, bias, epsilon)
    torch.testing.assert_close(attention.layer_norm(x, gain, bias, epsilon), expected, **EXACT)


def test_rms_norm_by_hand_and_as_in_torch(numbers) -> None:
    # mean of squares of (3, 4) is 12.5, its root 3.5355...
    x, gain = torch.tensor([3.0, 4.0], dtype=torch.float64), torch.tensor([1.0, 2.0])
    expected = torch.tensor([3 / 12.5**0.5, 8 / 12.5**0.5], dtype=torch.float64)
    torch.testing.assert_close(attention.rms_norm(x, gain, 0.0), expected, **EXACT)
    x, gain = numbers(5, 8), numbers(8)
    expected = functional.rms_norm(x, (8,), gain, 1e-3)
    torch.testing.assert_close(attention.rms_norm(x, gain, 1e-3), expected, **EXACT)


@pytest.mark.parametrize("name", ["gelu", "relu", "silu"])
def test_activations_are_torchs(name: str) -> None:
    x = torch.linspace(-40, 40, 401, dtype=torch.float64)
    ours, theirs = (getattr(module, name)(x) for module in (attention, functional))
    torch.testing.assert_close(ours, theirs, **EXACT)
    assert (attention.gelu_new(x) - attention.gelu(x)).abs().max() > 1e-4


def test_a_soft_cap_leaves_small_numbers_and_bounds_large_ones() -> None:
    x = torch.tensor([0.0, 1e-4, 1.0, -1.0, 100.0], dtype=torch.float64)
    tanh = 0.46211715726000975  # of 1/2; 2 tanh(50) is 2
    expected = torch.tensor([0.0, 1e-4, 2 * tanh, -2 * tanh, 2.0], dtype=torch.float64)
    torch.testing.assert_close(attention.softcap(x, 2.0), expected, rtol=0, atol=1e-12)


def visible(scores: torch.Tensor) -> list[list[int]]:
    """The keys that each query sees."""
    return [row.nonzero().flatten().tolist() for row in scores.isfinite()]


def test_a_window_hides_what_is_further_back_or_on_both_sides() -> None:
    scores = torch.zeros(5, 5)
    seen = visible(attention.mask(attention.sliding_window(scores, 2)))
    assert seen == [[0], [0, 1], [1, 2], [2, 3], [3, 4]]
    later = attention.mask(attention.sliding_window(torch.zeros(2, 5), 3))  # the last two queries
    assert visible(later) == [[1, 2, 3], [2, 3, 4]]
    assert torch.equal(attention.sliding_window(scores, 5), scores)
    seen = visible(attention.sliding_window(scores, 2, both_ways=True))
    assert seen == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [1, 2, 3, 4], [2, 3, 4]]
    last = attention.sliding_window(torch.zeros(2, 5), 1, both_ways=True)
    assert visible(last) == [[2, 3, 4], [3, 4]]


def test_interleaved_pairs_are_rotated_together_and_keep_their_products(numbers) -> None:
    x, y = numbers(6, 8), numbers(6, 8)
    angles = attention.rotary_angles(torch.arange(6), torch.ones(4))
    parted = attention.halves(x)
    assert torch.equal(parted, x[:, [0, 2, 4, 6, 1, 3, 5, 7]])
    torch.testing.assert_close((parted * attention.halves(y)).sum(-1), (x * y).sum(-1), **EXACT)
    output = attention.rotate(parted, angles.cos(), angles.sin())
    position = torch.arange(6).double()
    first = x[:, 0] * position.cos() - x[:, 1] * position.sin()
    torch.testing.assert_close(output[:, 0], first, rtol=0, atol=1e-6)


def test_heads_that_share_a_key_are_adjacent(numbers) -> None:
    k = numbers(2, 3, 4)
    shared = attention.repeat_kv(k, 6)
    assert torch.equal(shared, k[[0, 0, 0, 1, 1, 1]])
    assert torch.equal(attention.repeat_kv(k, 2), k)


def test_rotary_positions_rotate_pairs_like_complex_numbers(numbers) -> None:
    x = numbers(2, 6, 8)
    angles = attention.rotary_angles(torch.arange(6), attention.rotary_frequencies(8, 10000.0))
    output = attention.rotate(x, angles.cos(), angles.sin())
    for i in range(4):
        angle = torch.arange(6).float() * torch.tensor(1 / 10000.0 ** (2 * i / 8))
        whole = torch.complex(x[..., i], x[..., i + 4]) * torch.polar(torch.ones(6), angle).to(
            torch.complex128
        )
        torch.testing.assert_close(output[..., i], whole.real, rtol=0, atol=1e-6)
        torch.testing.assert_close(output[..., i + 4], whole.imag, rtol=0, atol=1e-6)
    assert torch.equal(output[:, 0], x[:, 0])  # position 0 is not rotated


def test_scaled_frequencies_by_hand() -> None:
    # In 100 positions these rotate 20, 4, 2 and 0.5 times. Between 1 and 5 the
    # unchanged fraction is 0.75 and 0.25.
    frequencies = torch.tensor([20.0, 4.0, 2.0, 0.5]) * 2 * math.pi / 100
    output = attention.rope_scaling(frequencies, factor=8, low=1, high=5, length=100)
    expected = frequencies * torch.tensor([1, 0.75 + 0.25 / 8, 0.25 + 0.75 / 8, 1 / 8])
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=0)


BASE = {"rope_theta": 10000.0}
YARN = BASE | {"factor": 7.0, "original_max_position_embeddings": 300}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"long_factor": [9.0] * 16, "short_factor": [1 + number / 7 for number in range(16)]}
SCALED = {
    "linear": BASE | {"factor": 3.0},
    "dynamic": BASE | {"factor": 3.0},
    "llama3": BASE | LLAMA3 | {"original_max_position_embeddings": 100},
    "yarn": YARN,
    "yarn, its ends not rounded": YARN | {"truncate": False, "beta_fast": 20.0, "beta_slow": 2.0},
    "yarn, scaled by two numbers": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn, stretched as it says": YARN | {"attention_factor": 1.25},
    "longrope": BASE | LONG | {"original_max_position_embeddings": 300},
}


@pytest.mark.parametrize("name", SCALED)
def test_scaled_frequencies_are_those_of_transformers_to_the_last_digit(name: str) -> None:
    stated = {"rope_type": name.partition(",")[0]} | SCALED[name]
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": 2000}
    # A new copy, because their config writes into its argument.
    theirs = transformers.LlamaConfig(**sizes, rope_parameters=dict(stated))
    exact, attention_factor = ROPE_INIT_FUNCTIONS[stated["rope_type"]](theirs, "cpu")
    raw = theirs.to_dict() | sizes | {"rope_parameters": stated, "vocab_size": 9}
    architecture = "LlamaForCausalLM"
    config = config_from(raw, where="a test", architecture=architecture, prepend_bos=True)
    frequencies = blocks.rotary(config.positions, local=False)
    assert frequencies.dtype == exact.dtype and torch.equal(frequencies, exact)
    assert blocks.rotary_factor(config.positions, local=False) == attention_factor
    # A text longer than LongRoPE's short factors allow has other frequencies throughout.
    assert config.n_ctx == (300 if name == "longrope" else 2000)


# 32 buckets up to 128, as T5 has them. Both ways: 16 each side, 8 of them exact, then 8 over
# log2(128/8) = 4 octaves, two per octave: from 8, 11.3, 16, 22.6, 32, 45.3, 64, 90.5 on. One way: 16
# exact, then 16 over log2(128/16) = 3 octaves.
BOTH_WAYS = {0: 0, -1: 1, -7: 7, -8: 8, -11: 8, -12: 9, -17: 10, -23: 11, -127: 15, -5000: 15}
BOTH_WAYS |= {1: 17, 7: 23, 9: 24, 40: 28, 500: 31}
ONE_WAY = {
    0: 0,
    1: 0,
    50: 0,
    -1: 1,
    -15: 15,
    -16: 16,
    -18: 16,
    -19: 17,
    -33: 21,
    -127: 31,
    -4000: 31,
}


@pytest.mark.parametrize(("buckets", "both_ways"), [(BOTH_WAYS, True), (ONE_WAY, False)])
def test_relative_buckets_by_hand(buckets: dict[int, int], both_ways: bool) -> None:
    offsets = torch.tensor(list(buckets))
    output = attention.relative_buckets(offsets, 32, furthest=128, both_ways=both_ways)
    assert dict(zip(buckets, output.tolist(), strict=True)) == buckets


def test_a_relative_bias_is_looked_up_per_head(numbers) -> None:
    table, positions = numbers(8, 3), torch.arange(4)
    bias = attention.relative_bias(
        table, positions[None] - positions[:, None], furthest=20, both_ways=True
    )
    assert bias.shape == (3, 4, 4)
    assert torch.equal(bias[:, 2, 2], table[0]) and torch.equal(bias[:, 2, 1], table[1])
    assert torch.equal(
        bias[:, 1, 2], table[4 + 1]
    )  # a later key, in the second half of the buckets


def test_sinusoids_by_hand() -> None:
    table = attention.sinusoids(3, 4)  # two frequencies: 1 and 1/100
    for pos in range(3):
        expected = [math.sin(pos), math.sin(pos / 100), math.cos(pos), math.cos(pos / 100)]
        torch.testing.assert_close(table[pos], torch.tensor(expected), rtol=0, atol=1e-7)
