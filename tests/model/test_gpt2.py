"""Heads of GPT-2 small that the literature agrees on: a previous-token head (Voita et al. 2019),
and induction heads (Olsson et al. 2022).

Skipped if its weights are not in the local hub cache. The measures are first tried on a model with
a known answer. `analyses/ioi.py` measures the published heads of indirect objects.
"""

import numpy as np
import pytest
import torch
from handmade import make_sentences
from huggingface_hub import try_to_load_from_cache
from planted import planted_model

import probe
from probe.model.trace import trace

CACHED = isinstance(try_to_load_from_cache("gpt2", "model.safetensors"), str)
needs_gpt2 = pytest.mark.skipif(
    not CACHED, reason="the weights of GPT-2 small are not in the local hub cache"
)
WORDS = [
    *("stone", "river", "paper", "window", "yellow", "doctor"),
    *("train", "music", "seven", "garden", "winter", "bottle"),
]


def previous_scores(model, texts):
    """Mean attention from every token after the second to the token before it. `-> layer head`"""
    by_text = [trace(model, text).pattern.diagonal(-1, -2, -1)[..., 1:].mean(-1) for text in texts]
    return torch.stack(by_text).mean(0)


def induction_scores(model, texts):
    """Mean attention, in the second of two copies, to the token that followed the same token in the
    first.

    `-> layer head`
    """
    by_text = []
    for text in texts:
        record = trace(model, f" {text} {text}")
        start = int(record.tokens.bos)
        length = (len(record.tokens) - start) // 2
        rows = range(start + length, start + 2 * length - 1)
        by_text.append(
            torch.stack([record.pattern[..., row, row - length + 1] for row in rows]).mean(0)
        )
    return torch.stack(by_text).mean(0)


# --- the measures themselves ----------------------------------------------------------------------


def test_the_planted_head_that_looks_one_back_has_the_largest_previous_score():
    model, circuit = planted_model("one_back", 0)
    scores = previous_scores(
        model, [sentence.text for sentence in make_sentences(frames=4, cues=1)]
    )
    assert tuple(divmod(int(scores.argmax()), scores.shape[1])) == circuit.head_indices[0]
    assert scores.max() > 0.95


# --- GPT-2 small ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt2():
    return probe.load("gpt2")


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
    top_heads = {tuple(divmod(int(index), 12)) for index in scores.flatten().topk(6).indices}
    assert {(5, 5), (6, 9)} <= top_heads
    assert min(scores[5, 5], scores[6, 9]) > 0.5
