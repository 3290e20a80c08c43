"""The references next to the shortcuts: chance, the order by swap effect, and only the heads before
the read-out layer, on effects written by hand."""

import runpy
from pathlib import Path

import altair
import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
LAYERS, HEADS, DEPTH, PAIRS = 3, 4, 2, 8
SIGNIFICANT = {(0, 0): 0.4, (0, 1): 0.3, (1, 2): 0.05}
ONE_PAIR_ONLY = (1, 0)  # moves the word by 0.2 on average, by 1.6 in one pair
# Attention to the cue: the four heads after the read-out layer first, then the significant ones.
ATTENTION = {(2, 0): 1.0, (2, 1): 0.9, (2, 2): 0.8, (2, 3): 0.7}
ATTENTION |= {(0, 0): 0.5, (0, 1): 0.4, (1, 2): 0.3}


def pairs_by_hand():
    """A frame as that of `shortcuts.shortcuts`."""
    rng = np.random.default_rng(0)
    rows = []
    for pair in range(PAIRS):
        for layer, head in np.ndindex(LAYERS, HEADS):
            here = (layer, head)
            swap = SIGNIFICANT.get(here, 0.0)
            if here in SIGNIFICANT:
                swap *= 1 + 0.01 * rng.standard_normal()
            if here == ONE_PAIR_ONLY and pair == 0:
                swap = 0.2 * PAIRS
            rows.append((pair, layer, head, swap, ATTENTION.get(here, 0.0)))
    frame = pd.DataFrame(rows, columns=["pair", "layer", "head", "swap", "attention"])
    frame = frame.assign(word="apple", sense_a="fruit", sense_b="firm", depth=DEPTH, gap=1.0)
    methods = ("rollout", "value_attention", "auroc", "direct", "attribution")
    same = dict.fromkeys((*methods, "integrated_5", "integrated_20"), frame["swap"])
    return frame.assign(unit=frame["pair"], **same)


def test_every_recall_has_its_three_references(tmp_path, monkeypatch):
    folder = tmp_path / "shortcuts" / "tiny-senses"
    folder.mkdir(parents=True)
    pairs_by_hand().to_parquet(folder / "apple.parquet")
    for name, value in {"OUT": tmp_path, "MODELS": "tiny-senses", "WORDS": 1}.items():
        monkeypatch.setenv(f"PROBE_{name}", str(value))
    script = ROOT / "analyses" / "which_shortcut_finds_the_heads.py"
    with altair.renderers.enable("default"):
        runpy.run_path(str(script), run_name="__main__")
    table = pd.read_csv(tmp_path / "which_shortcut_finds_the_heads.csv").set_index("method")
    names = ["recall", "recall_before", "lost", "lost_before"]

    # Of 12 heads 3 are significant; the five largest effects are 0.4, 0.3, 0.2, 0.05 and 0.
    expected = {
        # The top three are heads after the read-out layer; the top five have one of the effects.
        "attention": (0, 1, 1 - 0.4 / 0.95, 1 - 0.75 / 0.95),
        # The head that moves one pair only is third.
        "swap": (2 / 3, 2 / 3, 0, 0),
        # 3 of 12 and 3 of 8; five heads at random have 5/12 and 5/8 of the sum, 0.95.
        "chance": (3 / 12, 3 / 8, 1 - 5 / 12, 1 - 5 / 8),
    }
    for method, values in expected.items():
        assert table.loc[method, names].tolist() == pytest.approx(values, abs=0.01), method
    assert table.loc["attention", "words_before"] == 1
