"""A survey of made-up words: the input of a page, without a model."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from inside import Certificate, Origin, Row, Survey, sets_frames, summarise
from made_words import LAYERS, effects_of, made_word, unmeasured

WORDS = ("bank", "bark", "bat", "bolt", "bow", "chest", "club", "crane", "date", "deck", "draft")
WORDS += ("fan", "file", "jam", "mole", "mouse", "nail", "organ", "palm", "pitch", "pupil", "seal")
WORDS += ("spring", "stamp")
SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, eq=False)
class MadeSurvey(Survey):
    """A survey whose records are in memory and in no folder."""

    words: tuple[Any, ...] = ()

    def records(self) -> Iterator[Any]:
        return iter(self.words)


def sets_of(word, sizes, whole, others, own, random):
    """How much sets of heads carry of a word, as `probe.experiments.carried_sets` measures it."""
    by_size = {"others": ("size", others), "own": ("size", own)}
    return xr.Dataset(
        {"word": word, "whole": whole, **by_size, "random": (("size", "random_set"), random)},
        coords={"size": [*sizes]},
    )


def certificate_of(layers: int) -> Certificate:
    """A certificate without any disagreement."""
    rows = [Row(layer, "z", "attention.mix", 2e-7, 1.0, 1e-4) for layer in range(layers)]
    return Certificate("made-up", "float32", ("The river bank",), tuple(rows))


def make_survey(
    *,
    names: tuple[str, ...] = WORDS,
    shape: tuple[int, int] = (LAYERS, 4),
    model_name: str = "smollm2",
    heads: dict[str, float] | None = None,
    nouns: dict[str, float] | None = None,
    gap: float = 1.0,
    noise: float = 0.05,
    with_sets: bool = True,
    seed: int = 1,
    attention: np.ndarray | None = None,
    **more: Any,
) -> MadeSurvey:
    """A survey in which these heads have these effects on words and on nouns in their place."""
    heads = {"L0H1": 0.3, "L1H2": 0.2, "L1H3": 0.1} if heads is None else heads
    nouns = {"L0H1": 0.3, "L1H2": 0.05} if nouns is None else nouns
    rng = np.random.default_rng(seed)
    words = []
    for number, name in enumerate(names):
        effects = effects_of(shape, **heads) * rng.uniform(0.6, 1.4)
        word = made_word(
            number,
            effects,
            word=name,
            gap=gap * rng.uniform(0.5, 1.5),
            nouns=effects_of(shape, **nouns),
            noise=noise,
            kind=("homonym", "polyseme")[number % 2],
            columns={"relatedness": round(rng.uniform(0, 4), 2)},
            rng=rng,
            attention=attention,
        )
        words.append(word)
    words.append(unmeasured(99))
    summary = summarise(lambda: iter(words), seed=0, draws=499)
    measured = []
    for name in summary.left_out_orders if with_sets else ():
        faithfulness = np.array([0.3, 0.5, 0.6, 0.7])
        random = np.linspace(0.0, 0.1, 20)[None] * np.arange(1, 5)[:, None]
        others = faithfulness * rng.uniform(0.8, 1.1)
        measured.append(sets_of(name, SIZES, 1.0, others, faithfulness + 0.05, random))
    left_out = [("word099", "all cues come after the word", 4)]
    frames = summary.frames | sets_frames(measured, seed=0, draws=499)
    frames["survey_left_out"] = pd.DataFrame(left_out, columns=["word", "reason", "count"])
    fields: dict[str, Any] = {
        "origin": Origin("hub", "HuggingFaceTB/SmolLM2-135M", None, "ab" * 32),
        "options": {"seed": 0, "controls": None},
        "source": "words.csv",
        "data_sha256": "cd" * 32,
        "cautions": (),
        "files": (),
    }
    return MadeSurvey(
        model_name=model_name,
        words=tuple(words),
        frames=frames,
        certificate=certificate_of(shape[0]),
        depth=summary.depth,
        **fields | more,
    )
