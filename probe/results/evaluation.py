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
from probe.results.ablation import CHOSEN
from probe.results.frames import depth_label
from probe.text.cautions import words_before

WORDS_SHOWN = 3  # by name, where an evaluation shows itself in a line


@dataclass(frozen=True, eq=False)
class Evaluation(Displayed):
    """Accuracy and macro-F1 as frames (`probe.results.columns` says what each column is), and what
    made them.

    `words`: read at the depth chosen on each word's training sentences, with the baselines ·
    `depths`: every word at every depth · `mean`: every method and depth, averaged over the words ·
    `left_out`: what was not used, and why · `without`: the accuracy with heads taken out, where
    that was asked for · `sentences`: how each tested sentence is read; None where the folder of an
    earlier version was read back · `said`: what to know of the numbers, in sentences.
    """

    manifest: dict[str, Any]
    words: pd.DataFrame
    depths: pd.DataFrame
    mean: pd.DataFrame
    left_out: pd.DataFrame
    without: pd.DataFrame | None = None
    sentences: pd.DataFrame | None = None
    said: tuple[str, ...] = ()

    def __repr__(self) -> str:
        words = ", ".join(self.words["word"].head(WORDS_SHOWN))
        if len(self.words) > WORDS_SHOWN:
            words += f" and {len(self.words) - WORDS_SHOWN} more words"
        return f"<Evaluation of {words} in {self.manifest['model']}: {len(self.frames)} tables>"

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """The frames by name; `sentences` and `without` where they are there."""
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
        """The names of the heads that were taken out."""
        return list(self.manifest.get("without", []))

    @property
    def bag_accuracy(self) -> float:
        """The mean accuracy of the bag of words."""
        return float(self.words["bag_accuracy"].mean())

    def to_json(self) -> str:
        """The frames as lists of rows, with the model and the seed, and the heads taken out."""
        frames = {
            name: json.loads(frame.to_json(orient="records")) for name, frame in self.frames.items()
        }
        about = {"model": self.manifest["model"], "seed": self.manifest["seed"]}
        if self.without is not None:
            about["heads_out"] = self.heads_out
        return json.dumps(about | frames)


def word_row(task: Task, answers: Answers) -> dict[str, object]:
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
    """How each tested sentence is read, at the depth that its training sentences chose."""
    senses = sorted(set(task.material.labels))  # as `numbered` counts them
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
                "other": senses[answers.others[number]],
                "label": depth_label(int(answers.depths[number])),
                "cue": sentence.cue,
                "words_before": words_before(sentence),
                "text": sentence.text,
            }
        )
    return rows


def depth_rows(task: Task, answers: Answers, resid: Tensor) -> list[dict[str, object]]:
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
    """Every method's scores averaged over the words: each depth, the depths chosen in training, the
    baselines."""
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
    every = pd.concat([nearest, pd.DataFrame(rows)], ignore_index=True)
    columns = ["method", "depth", "label", "words", "accuracy", "macro_f1", "angle"]
    return every.assign(words=len(words)).astype({"depth": "Int64"})[columns]
