"""The result of an evaluation: accuracy and macro-F1 as frames."""

import json
from dataclasses import dataclass
from typing import Any

import pandas as pd
from scipy.stats import binomtest
from torch import Tensor

from probe.display import Displayed
from probe.experiments.accuracy import METHODS, Answers, Task, angle_gap, numbered
from probe.experiments.centroids import (
    Senses,
    macro_f1,
)
from probe.experiments.senses import depth_label
from probe.results.ablation import CHOSEN
from probe.text.cautions import words_before

WORDS_SHOWN = 3  # names in the repr of an evaluation


@dataclass(frozen=True, eq=False)
class Evaluation(Displayed):
    """Accuracy and macro-F1 as frames (`probe.results.columns` describes every column)."""

    manifest: dict[str, Any]  # how the result was computed
    words: pd.DataFrame  # every word at its chosen depth, with the baselines
    depths: pd.DataFrame  # every word at every depth
    mean: pd.DataFrame  # every method and depth, averaged over the words
    left_out: pd.DataFrame  # what was not used, with the reason
    without: pd.DataFrame | None = None  # the accuracy without heads, if requested
    # Every tested sentence with its prediction. None for a folder written by an earlier version.
    sentences: pd.DataFrame | None = None
    cautions: tuple[str, ...] = ()  # cautions about the numbers, in sentences

    def __repr__(self) -> str:
        words = ", ".join(self.words["word"].head(WORDS_SHOWN))
        if len(self.words) > WORDS_SHOWN:
            words += f" and {len(self.words) - WORDS_SHOWN} more words"
        return f"<Evaluation of {words} in {self.manifest['model']}: {len(self.frames)} tables>"

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """The frames by name. `sentences` and `without` only if they exist."""
        frames = {
            "words": self.words,
            "depths": self.depths,
            "mean": self.mean,
            "left_out": self.left_out,
        }
        for name in ("sentences", "without"):
            if (frame := getattr(self, name)) is not None:
                frames[name] = frame
        return frames

    @property
    def heads_out(self) -> list[str]:
        """The names of the removed heads."""
        return list(self.manifest.get("without", []))

    @property
    def bag_accuracy(self) -> float:
        """The mean accuracy of the bag-of-words baseline."""
        return float(self.words["bag_accuracy"].mean())

    def to_json(self) -> str:
        """The frames as lists of rows, with the model, the seed and the removed heads."""
        frames = {
            name: json.loads(frame.to_json(orient="records")) for name, frame in self.frames.items()
        }
        about = {"model": self.manifest["model"], "seed": self.manifest["seed"]}
        if self.without is not None:
            about["heads_out"] = self.heads_out
        return json.dumps(about | frames)


def word_row(task: Task, answers: Answers) -> dict[str, object]:
    """The row of a word in `words`, with a 95 % Wilson interval of the accuracy."""
    right = int((answers.gold == answers.predicted["nearest"]).sum())
    interval = binomtest(right, len(answers.gold)).proportion_ci(method="wilson")
    row: dict[str, object] = {
        "word": task.material.word,
        "senses": len(set(task.material.labels)),
        "sentences": len(task.material),
        "tested": len(answers.gold),
        "left_out": len(task.material.left_out),
        "split_design": task.plan.design,
        "depth": answers.depth,
        "accuracy_low": float(interval.low),
        "accuracy_high": float(interval.high),
    }
    for method in METHODS:
        row |= _scores(answers.gold, answers.predicted[method], _prefix(method))
    return row


def sentence_rows(task: Task, answers: Answers) -> list[dict[str, object]]:
    """A row for each tested sentence with its prediction, at the depth that was chosen on its
    training sentences.
    """
    senses = sorted(set(task.material.labels))  # in the order of `numbered`
    rows = []
    for number, row in enumerate(task.tested):
        sentence = task.material.sentences[row]
        predicted = senses[answers.predicted["nearest"][number]]
        rows.append(
            {
                "word": sentence.word,
                "sense": sentence.sense,
                "predicted": predicted,
                "right": predicted == sentence.sense,
                "coordinate": float(answers.coordinates[number]),
                "other": senses[answers.nearest_others[number]],
                "label": depth_label(int(answers.depths[number])),
                "cue": sentence.cue,
                "words_before": words_before(sentence),
                "text": sentence.text,
            }
        )
    return rows


def depth_rows(task: Task, answers: Answers, resid: Tensor) -> list[dict[str, object]]:
    """The rows of a word in `depths`, one for each depth.

    resid: the residual stream at the word. `sentence depth d_model`
    """
    angles = angle_gap(resid, numbered(task.material.sentences))
    return [
        {"word": task.material.word, "depth": depth, "label": depth_label(depth)}
        | _scores(answers.gold, predicted)
        | {"angle": float(angles[depth])}
        for depth, predicted in enumerate(answers.by_depth)
    ]


def _prefix(method: str) -> str:
    return "" if method == "nearest" else f"{method}_"


def _scores(gold: Senses, predicted: Senses, prefix: str = "") -> dict[str, object]:
    return {
        f"{prefix}accuracy": float((gold == predicted).mean()),
        f"{prefix}macro_f1": float(macro_f1(gold, predicted)),
    }


def means(words: pd.DataFrame, depths: pd.DataFrame) -> pd.DataFrame:
    """The frame `mean`: the scores averaged over the words, for each depth, for the depths chosen
    on the training sentences, and for the baselines.
    """
    by_depth = depths.groupby(["depth", "label"], as_index=False)[
        ["accuracy", "macro_f1", "angle"]
    ].mean()
    rows = []
    for method, name in METHODS.items():
        row: dict[str, object] = {
            "method": name,
            "label": CHOSEN if method == "nearest" else None,
        }
        for score in ("accuracy", "macro_f1"):
            row[score] = words[f"{_prefix(method)}{score}"].mean()
        rows.append(row)
    nearest = by_depth.assign(method=METHODS["nearest"])
    table = pd.concat([nearest, pd.DataFrame(rows)], ignore_index=True)
    columns = ["method", "depth", "label", "words", "accuracy", "macro_f1", "angle"]
    return table.assign(words=len(words)).astype({"depth": "Int64"})[columns]
