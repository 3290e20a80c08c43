"""How well the model's vector of a word tells the word's senses apart, layer by layer, on any labelled sentences.

The vector at the last token of the word goes to the nearest sense centroid (`probe.study.nearest`), learned on other
sentences (`probe.text.splits`). The depth to read at is chosen on the training sentences alone; the accuracy of every
depth stands beside it. So do three answers that need no model (`probe.study.nearest`): the most frequent sense, the
words of the sentence, and the words left of the word, which are all that a causal model can have read there. That is
why a sentence whose cue follows the word stays in: it is a question that such a model cannot answer, and the bag of the
words to the left cannot either.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from scipy.stats import binomtest
from torch import Tensor

from probe.errors import InputError
from probe.model.architectures import require_single
from probe.model.check import certify
from probe.model.model import Model
from probe.provenance import manifest
from probe.stats.numbers import counted
from probe.study import material, tables
from probe.study.columns import METHODS, rounded
from probe.study.material import Task
from probe.study.nearest import Answers, Labels, accuracy, angle_gap, answer, macro_f1, numbered
from probe.study.study import Progress
from probe.text.sentences import Corpus, as_corpus

REASONS = 5


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Accuracy and macro-F1 as frames (`probe.study.columns` says what each column is), and what made them.

    `words`: one row per word, read at the depth chosen on its training sentences, with the baselines · `depths`: one
    row per word and depth · `mean`: one row per method and depth, averaged over the words · `left_out`: what was not
    used, and why.
    """

    manifest: dict[str, Any]
    words: pd.DataFrame
    depths: pd.DataFrame
    mean: pd.DataFrame
    left_out: pd.DataFrame

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """The four frames by name."""
        return {"words": self.words, "depths": self.depths, "mean": self.mean, "left_out": self.left_out}

    def text_tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Header and rows of what a terminal shows: every word at its chosen depth, and the mean by depth."""
        counts, (_, *baselines) = ["senses", "sentences", "tested", "left_out"], METHODS
        words = [
            [row["word"], *(str(row[name]) for name in counts), tables.depth_label(row["depth"]), *_percent(row)]
            + [" / ".join(_percent(row, f"{method}_")) for method in baselines]
            for row in self.words.to_dict("records")
        ]
        header = ["word", "senses", "sentences", "tested", "left out", "read", "accuracy", "macro-F1"]
        means = [
            [row["method"], "" if pd.isna(row["label"]) else row["label"], *_percent(row)]
            + ["" if pd.isna(row["angle"]) else f"{row['angle']:.2f}"]
            for row in self.mean.to_dict("records")
        ]
        count = counted(len(self.words), "word")
        return [
            (header + [METHODS[method] for method in baselines], words),
            ([f"mean over {count}", "read", "accuracy", "macro-F1", "angle"], means),
        ]

    def reasons(self) -> list[str]:
        """How many sentences were left out and why, a line per reason, the rare reasons together."""
        counts = self.left_out["reason"].value_counts()
        lines = [f"{count} left out: {reason}" for reason, count in counts.head(REASONS).items()]
        rest = counts.iloc[REASONS:]
        return lines + ([f"{rest.sum()} left out for {len(rest)} other reasons"] if len(rest) else [])

    def to_json(self) -> str:
        """The frames as lists of rows, with the model and the seed."""
        frames = {name: json.loads(frame.to_json(orient="records")) for name, frame in self.frames.items()}
        return json.dumps({"model": self.manifest["model"], "seed": self.manifest["seed"]} | frames, ensure_ascii=False)

    def _repr_html_(self) -> str:
        return self.mean.to_html(index=False, float_format="{:.3f}".format, na_rep="")


def _percent(row: Mapping[Any, float], prefix: str = "") -> list[str]:
    return [f"{100 * row[f'{prefix}{score}']:.1f}" for score in ("accuracy", "macro_f1")]


def evaluate(model: Model, corpus: Any, *, seed: int = 0, progress: Progress | None = None) -> Evaluation:
    """Sense accuracy and macro-F1 of `model` at the word, per depth, on the sentences of `corpus`, with baselines.

    `corpus` is what `read_sentences` gives or takes (a path, a DataFrame, a list of dicts or of sentences).
    Raises InputError when no word has two senses that can be learned and tested apart, and CrossCheckError when the
    certificate fails: no number is reported from a model that disagrees with the from-scratch math.
    """
    require_single(model.config.architecture, "an evaluation")
    report, corpus = progress or (lambda stage, share: None), as_corpus(corpus)
    everything = material.prepare_task(model, corpus, seed=seed)
    left_out = _left_out(corpus, everything)
    tested = [task for task in everything if task.plan.holdouts]
    if not tested:
        raise _nothing_to_test(corpus, left_out)
    report("certificate", 0.02)
    certify(model, [tested[0].sentences[0].text]).require()
    report("reading", 0.05)
    word_rows, depth_rows = [], []
    for count, (task, resid) in enumerate(material.read(model, tested), start=1):
        answers = answer(task, resid, seed=seed)
        word_rows.append(_word_row(task, answers))
        depth_rows += _depth_rows(task, answers, resid)
        report(task.word, 0.05 + 0.95 * count / len(tested))
    words, depths = pd.DataFrame(word_rows), pd.DataFrame(depth_rows)
    words, depths, mean = (rounded(frame) for frame in (words, depths, _mean(words, depths)))
    made = manifest(
        model.name,
        model.origin,
        seed=seed,
        command="",
        data_sha256=corpus.sha256,
        dtype=str(model.dtype).removeprefix("torch."),
        sentences=corpus.source,
    )
    return Evaluation(made, words, depths, mean, left_out)


def _left_out(corpus: Corpus, everything: Sequence[Task]) -> pd.DataFrame:
    rows: list[tuple[str | None, str, str]] = [(None, item.where, item.reason) for item in corpus.left_out]
    rows += [(task.word, item.where, item.reason) for task in everything for item in task.left_out]
    return pd.DataFrame(rows, columns=["word", "where", "reason"])


def _nothing_to_test(corpus: Corpus, left_out: pd.DataFrame) -> InputError:
    reason, count = Counter(left_out["reason"]).most_common(1)[0]
    return InputError(
        f"Evaluating the sentences of {corpus.source}: none of {len(corpus.sentences)} can be tested ({count} left "
        f"out: {reason}), expected a word with two senses and at least two sentences of each; give more sentences."
    )


def _word_row(task: Task, answers: Answers) -> dict[str, object]:
    row: dict[str, object] = {
        "word": task.word,
        "senses": len(set(numbered(task.sentences))),
        "sentences": len(task),
        "tested": len(answers.gold),
        "left_out": len(task.left_out),
        "split_design": task.plan.design,
        "depth": answers.depth,
    }
    right = int((answers.gold == answers.nearest).sum())
    sure = binomtest(right, len(answers.gold)).proportion_ci(method="wilson")
    row |= {"accuracy_low": float(sure.low), "accuracy_high": float(sure.high)}
    for method in METHODS:
        row |= _scores(answers.gold, getattr(answers, method), "" if method == "nearest" else f"{method}_")
    return row


def _depth_rows(task: Task, answers: Answers, resid: Tensor) -> list[dict[str, object]]:
    angles = angle_gap(resid, numbered(task.sentences))
    return [
        {"word": task.word, "depth": depth, "label": tables.depth_label(depth)}
        | _scores(answers.gold, said)
        | {"angle": float(angles[depth])}
        for depth, said in enumerate(answers.by_depth)
    ]


def _scores(gold: Labels, said: Labels, prefix: str = "") -> dict[str, object]:
    return {f"{prefix}accuracy": float(accuracy(gold, said)), f"{prefix}macro_f1": float(macro_f1(gold, said))}


def _mean(words: pd.DataFrame, depths: pd.DataFrame) -> pd.DataFrame:
    """Every method's scores averaged over the words: each depth, the depths chosen in training, the baselines."""
    by_depth = depths.groupby(["depth", "label"], as_index=False)[["accuracy", "macro_f1", "angle"]].mean()
    rows = []
    for method, name in METHODS.items():
        prefix = "" if method == "nearest" else f"{method}_"
        means = {score: words[f"{prefix}{score}"].mean() for score in ("accuracy", "macro_f1")}
        rows.append({"method": name, "label": "depth chosen in training" if method == "nearest" else None} | means)
    every = pd.concat([by_depth.assign(method=METHODS["nearest"]), pd.DataFrame(rows)], ignore_index=True)
    columns = ["method", "depth", "label", "words", "accuracy", "macro_f1", "angle"]
    return every.assign(words=len(words)).astype({"depth": "Int64"})[columns]
