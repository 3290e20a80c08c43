"""What the cards of the models that ship have in common: every figure in them is measured by the run that writes
them.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from training.grammar import topics
from training.scoring import Answer, Score, overall
from training.withheld import held_out_cues


@dataclass(frozen=True)
class Facts:
    """What a training run knows about itself; `minutes` of processor time."""

    seed: int
    steps: int
    minutes: float
    parameters: int
    tokens: int


def count_types(texts: Iterable[str]) -> int:
    """Different words, letter case aside."""
    return len(
        {word for text in texts for word in re.findall(r"[a-z]+(?:['-][a-z]+)*", text.lower())}
    )


def table(scores: Sequence[Score]) -> str:
    """The accuracies as a Markdown table, in per cent."""
    lines = [
        "| word | senses | seen cues | held-out cues | depth | before attention |",
        "|---|---|---|---|---|---|",
    ]
    for score in scores:
        depth = ", ".join(map(str, sorted(set(score.depths))))
        row = f"{100 * score.seen:.1f} | {100 * score.held_out:.1f} | {depth} | {100 * score.embedding:.1f}"
        lines.append(f"| {score.word} | {score.senses} | {row} |")
    seen, held_out = overall(scores)
    lines.append(f"| **all** | | **{100 * seen:.1f}** | **{100 * held_out:.1f}** | | |")
    return "\n".join(lines)


def shown(answers: Sequence[Answer], *, heading: str, text: Callable[[Answer], str]) -> str:
    """The example sentences as a Markdown table, each as `text` writes it."""
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
    """How many words, senses, cues and held-out cues the grammar has."""
    cues = {cue for topic in topics() for cue in topic.cues}
    words = {topic.word for topic in topics()}
    return {
        "words": len(words),
        "senses": len(topics()),
        "cues": len(cues),
        "held": len(held_out_cues()),
    }
