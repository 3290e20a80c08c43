"""Keys and values that are kept: the same results, each text once up to the word, within a limit."""

import pytest
import torch
from families import family_model
from hooked_runs import random_rows
from inside import TargetText, read_weights, tokens, variants

from probe.model import kept_keys
from probe.model.kept_keys import KeptKeys, bytes_before, keeping

NOUNS = [[7], [90]]


@pytest.fixture(params=["gpt2", "llama", "lfm2"])
def weights(request):
    return read_weights(family_model(request.param, torch.float64))


@pytest.fixture
def texts(weights):
    model = family_model(
        "gpt2", torch.float64
    )  # rows of token ids that every one of these models has
    return [TargetText(text.ids[: text.at + 1], text.at) for text in random_rows(model) if text.at]


@pytest.fixture
def run(monkeypatch):
    """The rows that are run before the word, with the number of blocks."""
    rows_run = []
    run_past = variants.run_past

    def counting(weights, rows, depth, terms):
        rows_run.extend((row, depth) for row in rows)
        return run_past(weights, rows, depth, terms)

    monkeypatch.setattr(variants, "run_past", counting)
    return rows_run


def test_kept_keys_give_the_same_states_and_are_run_once(weights, texts, run):
    separate = tokens.replace_tokens(weights, texts, NOUNS)
    del run[:]
    cache = KeptKeys(weights)
    with keeping(cache):
        first = tokens.replace_tokens(weights, texts, NOUNS)
        again = tokens.replace_tokens(weights, texts, NOUNS, depth=1)
    depth = len(weights.blocks)
    assert sorted(run) == sorted({(text.ids[:-1], depth) for text in texts})
    assert len(cache) == len(run)
    torch.testing.assert_close(first.resid, separate.resid, rtol=0, atol=1e-10)
    torch.testing.assert_close(again.resid, separate.resid[:, :, :2], rtol=0, atol=1e-10)


def test_rows_are_run_again_for_more_blocks_and_in_other_weights(weights, texts, run):
    second_weights = read_weights(family_model("gpt2", torch.float64))
    with keeping(KeptKeys(weights)):
        tokens.replace_tokens(weights, texts[:1], NOUNS, depth=1)
        tokens.replace_tokens(weights, texts[:1], NOUNS, depth=2)
        tokens.replace_tokens(second_weights, texts[:1], NOUNS, depth=1)
        tokens.replace_tokens(second_weights, texts[:1], NOUNS, depth=1)
    assert [depth for _, depth in run] == [1, 2, 1, 1]


def test_what_does_not_fit_is_run_again(weights, texts, run, monkeypatch):
    [text, *_] = texts
    size = bytes_before(weights, text.at, len(weights.blocks))
    for limit, times in ((size, 1), (size - 1, 2)):
        del run[:]
        monkeypatch.setattr(kept_keys, "KEPT_BYTES", limit)
        with keeping(KeptKeys(weights)):
            for _ in range(2):
                tokens.replace_tokens(weights, [text], NOUNS)
        assert len(run) == times
