"""11: the heads of GPT-2 small that the literature agrees on, found by the traces of this library.

Skipped where its weights are not in the local hub cache. What is measured is first tried on models whose answer is
known.

Sources: Wang et al. 2022 (indirect objects); Olsson et al. 2022 (induction heads); Voita et al. 2019 (positional
heads).
"""

import numpy as np
import pytest
import torch
from handmade import make_sentences, random_model
from huggingface_hub import try_to_load_from_cache
from planted import planted_model

import probe
from probe.model import forward
from probe.model.trace import trace

CACHED = isinstance(try_to_load_from_cache("gpt2", "model.safetensors"), str)
needs_gpt2 = pytest.mark.skipif(not CACHED, reason="the weights of GPT-2 small are not in the local hub cache")
WORDS = [
    *("stone", "river", "paper", "window", "yellow", "doctor"),
    *("train", "music", "seven", "garden", "winter", "bottle"),
]
NAMES = ["Mary", "John", "Tom", "James", "Dan", "Sarah", "Anna", "Paul", "Mark", "Alice"]
TEMPLATES = (
    "Then, {} and {} went to the store. {} gave a book to",
    "When {} and {} had lunch at the house, {} decided to give a ring to",
    "After {} and {} spent some time at the park, {} offered a drink to",
)


def previous_scores(model, texts):
    """Mean attention from every token but the first two to the token before it. `-> layer head`"""
    found = [trace(model, text).pattern.diagonal(-1, -2, -1)[..., 1:].mean(-1) for text in texts]
    return torch.stack(found).mean(0)


def induction_scores(model, texts):
    """Mean attention, in the second of two copies, to the token that followed the same token in the first.

    `-> layer head`
    """
    found = []
    for text in texts:
        seen = trace(model, f" {text} {text}")
        start = int(seen.tokens.bos)
        length = (len(seen.tokens) - start) // 2
        rows = range(start + length, start + 2 * length - 1)
        found.append(torch.stack([seen.pattern[..., row, row - length + 1] for row in rows]).mean(0))
    return torch.stack(found).mean(0)


def logit_direction(seen, answer, other):
    """What a vector at the last position has to be multiplied by to give its share of the logit difference, ln_f
    frozen.
    """
    weights, last = seen.weights, seen.resid_post[-1, -1]
    spread = ((last - last.mean()).pow(2).mean() + weights.config.epsilon).sqrt()
    table = forward.unembedding(weights, weights.dtype)
    raw = weights.raw["ln_f.weight"] * (table[answer] - table[other]) / spread
    return raw - raw.mean()  # LayerNorm takes the mean off every vector


def direct_logits(seen, direction):
    """What every head writes at the last position along a direction. `-> layer head`"""
    w_o = torch.stack([block.w_o for block in seen.weights.blocks])
    return torch.einsum("lhd,lhdm,m->lh", seen.z[:, :, -1], w_o, direction)


# --- the measurements themselves -------------------------------------------------------------------------------------


def test_the_planted_head_that_looks_one_back_has_the_largest_previous_score():
    model, circuit = planted_model("one_back", 0)
    scores = previous_scores(model, [sentence.text for sentence in make_sentences(frames=4, cues=1)])
    assert tuple(divmod(int(scores.argmax()), scores.shape[1])) == circuit.places[0]
    assert scores.max() > 0.95


def test_direct_logits_and_all_other_writes_sum_to_the_logit_difference():
    model = random_model(torch.float64)
    seen = trace(model, "the old grey lock")
    direction = logit_direction(seen, 5, 9)
    heads = direct_logits(seen, direction).sum()
    b_o = sum(block.b_o for block in seen.weights.blocks)
    rest = (seen.resid_pre[0, -1] + seen.mlp_out[:, -1].sum(0) + b_o) @ direction
    logits = forward.unembed(seen.weights, seen.resid_post[-1, -1])
    table = forward.unembedding(seen.weights, torch.float64)
    bias = seen.weights.raw["ln_f.bias"] @ (table[5] - table[9])
    assert (heads + rest + bias).item() == pytest.approx((logits[5] - logits[9]).item(), abs=1e-10)


# --- GPT-2 small -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt2():
    return probe.load("gpt2")


@pytest.fixture(scope="module")
def objects(gpt2):
    """Logit differences of indirect-object sentences, and the mean direct contribution of every head."""
    rng = np.random.default_rng(0)
    differences, direct = [], []
    for template in TEMPLATES * 8:
        one, two = rng.choice(NAMES, size=2, replace=False)
        subject, answer = (one, two) if rng.random() < 0.5 else (two, one)
        seen = trace(gpt2, template.format(one, two, subject))
        [right], [wrong] = (gpt2.tokenizer.encode(f" {name}") for name in (answer, subject))
        differences.append((seen.logits[-1, right] - seen.logits[-1, wrong]).item())
        direct.append(direct_logits(seen, logit_direction(seen, right, wrong)))
    return np.array(differences), torch.stack(direct).mean(0)


@needs_gpt2
@pytest.mark.slow
def test_the_previous_token_head(gpt2):
    texts = [" ".join(np.random.default_rng(seed).permutation(WORDS)) for seed in range(4)]
    scores = previous_scores(gpt2, texts)
    assert tuple(divmod(int(scores.argmax()), 12)) == (4, 11)
    assert scores.max() > 0.8


@needs_gpt2
@pytest.mark.slow
def test_the_induction_heads(gpt2):
    texts = [" ".join(np.random.default_rng(seed).permutation(WORDS)) for seed in range(4)]
    scores = induction_scores(gpt2, texts)
    leading = {tuple(divmod(int(index), 12)) for index in scores.flatten().topk(6).indices}
    assert {(5, 5), (6, 9)} <= leading
    assert min(scores[5, 5], scores[6, 9]) > 0.5


@needs_gpt2
@pytest.mark.slow
def test_indirect_objects(objects):
    differences, direct = objects
    assert differences.mean() == pytest.approx(3.5, abs=1.0)
    order = [tuple(divmod(int(index), 12)) for index in direct.flatten().argsort(descending=True)]
    assert {(9, 9), (9, 6), (10, 0)} <= set(order[:4])
    assert {(10, 7), (11, 10)} == set(order[-2:])
