"""Circuits by the measures of MIB's circuit track: `make campaign`, or
`python tests/campaign/mib_circuits.py --out reports`.

Programs compiled by Tracr, whose circuits are known, and indirect-object sentences in a GPT-2 with
random weights, for which only the form matters. Every edge is scored by an exact intervention
(`probe.mib.exact_scores`). `mib.csv` has the areas of each task. With `--files` the scores are
written in the form of a submission, with the texts in the same folder.
"""

import argparse
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from compiled import EMBEDDING, MLP, Compiled, compiled, programs
from tracr_circuits import answer_ids, pairs_of

import probe
from probe import Model

PAIRS = 8
NAMES = ("Mary", "John", "Anna", "Paul", "Rosa", "Karl", "Ida", "Max")
FRAME = [
    "When",
    "{a}",
    "and",
    "{b}",
    "went",
    "to",
    "the",
    "store",
    ",",
    "{s}",
    "gave",
    "a",
    "drink",
    "to",
]
CHANNEL = {"query": "<q>", "key": "<k>", "value": "<v>", "input": ""}


class Task(NamedTuple):
    """Token ids of clean and corrupt texts, the answers of each pair, and the edges of the known
    circuit; none without a known circuit."""

    name: str
    model: Model
    clean: list[list[int]]
    corrupt: list[list[int]]
    answers: list[tuple[int, int]]
    circuit: tuple[str, ...] = ()


def program_task(program: Compiled) -> Task:
    """A program on inputs that differ in one token and in the output at the last one."""
    pairs = pairs_of(program, PAIRS)
    ids = program.inputs.tolist()
    return Task(
        program.name,
        program.model,
        [ids[clean] for clean, _ in pairs],
        [ids[corrupt] for _, corrupt in pairs],
        [answer_ids(program, pair) for pair in pairs],
        known_edges(program),
    )


def known_edges(program: Compiled) -> tuple[str, ...]:
    """The edges of a program's circuit by MIB's names. The logits read the outputs that nothing
    else in the circuit reads."""
    names = {
        f"{_name(writer)}->{_name(reader)}{CHANNEL[how]}" for writer, reader, how in program.edges
    }
    writers = {writer for writer, _, _ in program.edges}
    ends = {reader for _, reader, _ in program.edges} - writers
    return tuple(sorted(names | {f"{_name(end)}->logits" for end in ends}))


def _name(part: tuple[int, int]) -> str:
    layer, head = part
    if layer == EMBEDDING:
        return "input"
    return f"m{layer}" if head == MLP else f"a{layer}.h{head}"


def indirect_objects(model: Model) -> Task:
    """Sentences in which the second name is repeated, and the same with the first. Words are
    numbered ids, because random weights have no tokens."""
    words = {word: number for number, word in enumerate([*NAMES, *FRAME], start=5)}

    def ids(a: str, b: str, s: str) -> list[int]:
        return [words.get(word.format(a=a, b=b, s=s), 0) for word in FRAME]

    name_pairs = [
        tuple(np.random.default_rng(seed).permutation(NAMES)[:2]) for seed in range(PAIRS)
    ]
    return Task(
        "indirect objects, random weights",
        model,
        [ids(a, b, b) for a, b in name_pairs],
        [ids(a, b, a) for a, b in name_pairs],
        [(words[a], words[b]) for a, b in name_pairs],
    )


def tasks(names: list[str] | None) -> Iterator[Task]:
    """The tasks of these names, or all of them."""
    from handmade import random_model

    indirect = indirect_objects(random_model())
    if names is None or indirect.name in names:
        yield indirect
    if find_spec("tracr") is None:
        print("Tracr is not installed: no programs; python -m pip install '.[tracr]'", flush=True)
        return
    for name in programs():
        if names is None or name in names:
            yield program_task(compiled(name))


def row_of(task: Task, files: Path | None) -> dict[str, object]:
    """The row of `mib.csv` for one task."""
    graph = probe.mib.graph(task.model)
    inputs = task.clean, task.corrupt, task.answers
    scores = probe.mib.exact_scores(task.model, *inputs)
    nodes = probe.mib.exact_scores(task.model, *inputs, level="node")
    by_edge = probe.mib.evaluate(task.model, *inputs, scores)
    by_node = probe.mib.evaluate(task.model, *inputs, nodes)
    row: dict[str, object] = {
        "task": task.name,
        "edges": len(graph.edges),
        "known": len(task.circuit),
    }
    row |= {"cpr": by_edge.cpr, "cmd": by_edge.cmd}
    row |= {"node_cpr": by_node.cpr, "node_cmd": by_node.cmd, "auroc": np.nan}
    if task.circuit:
        row["auroc"] = probe.mib.area_under_roc(graph, scores, task.circuit)
    if files is not None:
        folder = files / task.name.replace(" ", "_").replace(",", "")
        probe.mib.write(graph, folder / "importances.json", edges=scores, nodes=nodes)
        about = {"clean": task.clean, "corrupt": task.corrupt, "answers": task.answers}
        about["known"] = list(task.circuit)
        (folder / "texts.json").write_text(json.dumps(about), encoding="utf-8")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of mib.csv")
    parser.add_argument("--files", type=Path, help="a folder for the scores, one folder a task")
    parser.add_argument("--tasks", nargs="+", help="by default all")
    options = parser.parse_args()
    rows = []
    for task in tasks(options.tasks):
        rows.append(row_of(task, options.files))
        print(rows[-1], flush=True)
    pd.DataFrame(rows).to_csv(options.out / "mib.csv", index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
