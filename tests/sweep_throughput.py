"""What a sweep costs: `python tests/sweep_throughput.py --out reports` writes sentences per second, and memory at two sizes.

In one run, with the same blocks of the same sentences and the embedded model loaded before the clock starts: a plain loop over
the blocks in one process, then Dask with one worker and with two. Sentences come from the grammar of the embedded model.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil

from probe.provenance import write_atomically
from probe.sweep.streams import Source

if TYPE_CHECKING:
    from probe.sweep.work import Job, Unit

MODEL, LARGE = "tiny-senses", "GPT-2 small's shape"
COLUMNS = (
    "model",
    "engine",
    "workers",
    "sentences",
    "seconds",
    "per_second",
    "per_worker",
    "of_plain_loop",
    "tokens",
    "layers",
    "heads",
    "d_model",
    "d_mlp",
    "per_processor_second",
    "of_plain_processor",
)


def make_sentences(path: Path, count: int, *, seed: int = 5, word: str | None = None) -> Path:
    """Sentences of the grammar with an ambiguous word, its sense and, where it stands before the word, its cue."""
    from probe.embedded import grammar

    rng, topics = Random(seed), grammar.topics()
    with path.open("w", encoding="utf-8") as opened:
        while count:
            topic = rng.choice([topic for topic in topics if word in (None, topic.word)])
            text = grammar.ambiguous(topic, rng)
            places = list(re.finditer(rf"\b{re.escape(topic.word)}s?\b", text))
            if not places:
                continue
            start, end = places[-1].span()
            row = {"word": topic.word, "sense": topic.sense, "text": text, "start": start, "end": end}
            cues = [found for cue in topic.cues if (found := re.search(rf"\b{re.escape(cue)}\b", text[:start]))]
            if cues:
                row |= {"cue_start": cues[0].start(), "cue_end": cues[0].end()}
            opened.write(json.dumps(row) + "\n")
            count -= 1
    return path


def make_large(folder: Path) -> Path:
    """A model of GPT-2 small's shape with random weights and the embedded model's tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from probe.models import EMBEDDED_FOLDER

    config = GPT2Config(
        vocab_size=3343, n_positions=256, bos_token_id=0, eos_token_id=0, architectures=["GPT2LMHeadModel"]
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED_FOLDER / MODEL / name, folder)
    return folder


def measure(count: int, large: int) -> list[dict[str, object]]:
    """Reading and dealing out, which one process does, and one row per engine, whose clock runs over the blocks alone."""
    with TemporaryDirectory() as place:
        many, few = (
            make_sentences(Path(place) / "many.jsonl", count),
            make_sentences(Path(place) / "few.jsonl", large, word="bank"),
        )
        rows = _engines(Path(place), many, (MODEL, MODEL), (("local", 1), ("dask", 1), ("dask", 2)))
        if large:
            named = (LARGE, str(make_large(Path(place) / "large")))
            rows += _engines(Path(place) / "more", few, named, (("local", 1),), rounds=1)[1:]
    return rows


def _engines(
    place: Path, source: Path, model: tuple[str, str], engines: Sequence[tuple[str, int]], *, rounds: int = 2
) -> list[dict[str, object]]:
    """Every engine in turn, there and back, so that a machine that grows slower is so for all of them."""
    from probe.models import load
    from probe.sweep import shards, work
    from probe.sweep.deal import Options, deal, require_index

    options, rows = Options(block=256), []
    loaded = load(model[1])
    sizes = (loaded.config.n_layers, loaded.config.n_heads, loaded.config.d_model, loaded.config.d_mlp)
    work._loaded.cache_clear()
    spent: dict[tuple[str, int], list[list[float]]] = {}
    turns = [who for turn in range(rounds) for who in (engines[::-1] if turn % 2 else engines)]
    for number, who in enumerate(turns):
        folder = place / f"set-{number}"
        job = work.Job(str(folder), model[1], loaded.origin.sha256, options)
        with shards.only_writer(folder):
            began = time.perf_counter()
            dealt = deal([Source(source, source.name)], folder, options, causal=True)["rows"]
            if not rows:
                rows.append(_row((model[0], "reading", 1), (dealt, time.perf_counter() - began, 0.0), folder, sizes))
            work.clear()
            measured, *seconds = _timed(job, work.units(str(number), require_index(folder)), who)
        spent.setdefault(who, []).append(seconds)
    count = measured // (sizes[0] * sizes[1]) * rounds
    totals = {who: [sum(part) for part in zip(*spent[who], strict=True)] for who in engines}
    clock, processor = (count / total for total in totals[engines[0]])
    for who in engines:
        row = _row((model[0], *who), (count, totals[who][0], clock), folder, sizes)
        by_processor = count / totals[who][1]
        rows.append(
            row
            | {"per_processor_second": f"{by_processor:.3g}", "of_plain_processor": round(by_processor / processor, 2)}
        )
    return rows


def _timed(job: "Job", units: tuple[list["Unit"], list["Unit"]], who: tuple[str, int]) -> tuple[int, float, float]:
    """Rows of heads, and the seconds that the blocks took, by the clock and of the processors.

    Axes are fitted before, by which every worker has loaded the model.
    """
    from probe.sweep.engines import engine

    name, workers = who
    with engine(name, job.place, workers=workers) as run:
        list(run(job, units[0]))
        began, used = time.perf_counter(), _processor_seconds(name)
        receipts = list(run(job, units[1]))
        seconds = time.perf_counter() - began, _processor_seconds(name) - used
    return sum(receipt["heads"] for receipt in receipts), *seconds


def _processor_seconds(name: str) -> float:
    """What this process has used, or its workers."""
    if name == "local":
        return time.process_time()
    workers = [p for p in psutil.Process().children(recursive=True) if "spawn_main" in " ".join(p.cmdline())]
    return sum(sum(worker.cpu_times()[:2]) for worker in workers)


def _row(
    who: tuple[str, str, int], timed: tuple[int, float, float], folder: Path, sizes: tuple[int, ...]
) -> dict[str, object]:
    (_, _, workers), (count, seconds, plain) = who, timed
    rate = count / seconds
    of_plain = round(rate / workers / plain, 2) if plain else ""
    facts = (count, round(seconds, 1), f"{rate:.3g}", f"{rate / workers:.3g}", of_plain, tokens_of(folder))
    return dict(zip(COLUMNS, (*who, *facts, *sizes, "", ""), strict=True))


def tokens_of(folder: Path) -> float:
    """Mean length up to the word, in tokens of about four characters."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(folder / "rows", columns=["end"])
    return round(sum(table["end"].to_pylist()) / table.num_rows / 4, 1)


MEMORY = ("sentences", "seconds", "sentences_per_second", "peak_megabytes")


def measure_memory(count: int, *more: str) -> dict[str, object]:
    """A whole `probe sweep` of so many sentences in a process of its own: how long it took and its largest memory."""
    with TemporaryDirectory() as place:
        source = make_sentences(Path(place) / "sentences.jsonl", count)
        command = [
            sys.executable,
            "-m",
            "probe",
            "sweep",
            "--sentences",
            str(source),
            "--out",
            str(Path(place) / "out"),
            *more,
        ]
        began = time.perf_counter()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise RuntimeError(f"the sweep ended with {status}")
        seconds = time.perf_counter() - began
    return dict(zip(MEMORY, (count, round(seconds), round(count / seconds), round(used.ru_maxrss / 1024)), strict=True))


def write(path: Path, rows: list[dict[str, object]]) -> None:
    lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
    write_atomically(path, "\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=6000)
    parser.add_argument("--large", type=int, default=200, help="sentences for the larger model")
    parser.add_argument("--memory", type=int, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("reports"))
    given = parser.parse_args()
    if (
        given.memory
    ):  # first: the peak that the system tells of a process counts what its parent held when it was started
        write(given.out / "sweep_memory.csv", [measure_memory(count) for count in given.memory])
    if given.sentences:
        write(given.out / "sweep_throughput.csv", measure(given.sentences, given.large))


if __name__ == "__main__":
    main()
