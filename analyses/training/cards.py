"""The shared parts of the models' cards. The run that writes a card measures every number in it."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from training.grammar import topics
from training.scoring import Answer, Score, overall
from training.withheld import held_out_cues


@dataclass(frozen=True)
class Facts:
    """The facts of a training run."""

    seed: int
    steps: int
    minutes: float  # of processor time
    parameters: int
    tokens: int


def count_types(texts: Iterable[str]) -> int:
    """The number of different words, ignoring case."""
    return len(
        {word for text in texts for word in re.findall(r"[a-z]+(?:['-][a-z]+)*", text.lower())}
    )


def table(scores: Sequence[Score]) -> str:
    """The accuracies as a Markdown table, in percent."""
    lines = [
        "| word | senses | seen cues | held-out cues | depth | before attention |",
        "|---|---|---|---|---|---|",
    ]
    for score in scores:
        depth = ", ".join(map(str, sorted(set(score.depths))))
        row = f"{100 * score.on_seen:.1f} | {100 * score.held_out:.1f} | {depth} | {100 * score.embedding:.1f}"
        lines.append(f"| {score.word} | {score.senses} | {row} |")
    on_seen, on_held_out = overall(scores)
    lines.append(f"| **all** | | **{100 * on_seen:.1f}** | **{100 * on_held_out:.1f}** | | |")
    return "\n".join(lines)


def example_table(answers: Sequence[Answer], *, heading: str, text: Callable[[Answer], str]) -> str:
    """The example sentences as a Markdown table, each formatted by `text`."""
    lines = [
        f"| {heading} | sense meant | nearest mean | cue before the word |",
        "|---|---|---|---|",
    ]
    for row in answers:
        lines.append(
            f"| {text(row)} | {row.sense} | {row.answer} | {'no' if row.cue_after else 'yes'} |"
        )
    return "\n".join(lines)


def counts() -> dict[str, int]:
    """The numbers of words, senses, cues and held-out cues of the grammar."""
    cues = {cue for topic in topics() for cue in topic.cues}
    words = {topic.word for topic in topics()}
    return {
        "words": len(words),
        "senses": len(topics()),
        "cues": len(cues),
        "held": len(held_out_cues()),
    }
