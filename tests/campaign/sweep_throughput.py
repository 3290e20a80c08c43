"""What a sweep costs, in sentences per second, and its memory at two sizes.

`PYTHONPATH=tests:analyses python tests/campaign/sweep_throughput.py --out reports` writes both.

In one run, with the same blocks of the same sentences and the embedded model loaded before the
clock starts: a plain loop over the blocks in one process, two such loops at once, which tells what
a core does while the other one works, and Dask with one worker and with two. Sentences come from
the grammar of the embedded model.
"""

import argparse
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil

from probe.provenance import write_atomically
from probe.sweep.work import ONE_THREAD
from probe.text.files import Source

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

    from probe.sweep.work import SweepJob, Unit

WARM = 4
MODEL, LARGE = "tiny-senses", "GPT-2 small's shape"
COLUMNS = (
    *(
        "model",
        "engine",
        "workers",
        "sentences",
        "seconds",
        "per_second",
        "per_worker",
        "of_plain_loop",
    ),
    *("of_as_many_loops", "tokens", "layers", "heads", "d_model", "d_mlp", "per_processor_second"),
    "of_plain_processor",
)


def make_sentences(path: Path, count: int, *, seed: int = 5, word: str | None = None) -> Path:
    """Sentences of the grammar with an ambiguous word, its sense and, where it stands before the
    word, its cue."""
    from training import grammar

    rng, topics = Random(seed), grammar.topics()
    with path.open("w", encoding="utf-8") as opened:
        while count:
            topic = rng.choice([topic for topic in topics if word in (None, topic.word)])
            text = grammar.ambiguous(topic, rng)
            places = list(re.finditer(rf"\b{re.escape(topic.word)}s?\b", text))
            if not places:
                continue
            start, end = places[-1].span()
            row = {
                "word": topic.word,
                "sense": topic.sense,
                "text": text,
                "start": start,
                "end": end,
            }
            cues = [
                found
                for cue in topic.cues
                if (found := re.search(rf"\b{re.escape(cue)}\b", text[:start]))
            ]
            if cues:
                row |= {"cue_start": cues[0].start(), "cue_end": cues[0].end()}
            opened.write(json.dumps(row) + "\n")
            count -= 1
    return path


def make_large(folder: Path) -> Path:
    """A model of GPT-2 small's shape with random weights and the embedded model's tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from probe.model.find import EMBEDDED_FOLDER

    sizes = {"vocab_size": 3343, "n_positions": 256, "bos_token_id": 0, "eos_token_id": 0}
    GPT2LMHeadModel(GPT2Config(**sizes, architectures=["GPT2LMHeadModel"])).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED_FOLDER / MODEL / name, folder)
    return folder


def measure(count: int, large: int) -> list[dict[str, object]]:
    """Reading and dealing out, which one process does, and a row per engine, whose clock runs over
    the blocks alone."""
    with TemporaryDirectory() as place:
        many = make_sentences(Path(place) / "many.jsonl", count)
        few = make_sentences(Path(place) / "few.jsonl", large, word="bank")
        rows = _engines(
            Path(place),
            many,
            (MODEL, MODEL),
            (("local", 1), ("local", 2), ("dask", 1), ("dask", 2)),
        )
        if large:
            named = (LARGE, str(make_large(Path(place) / "large")))
            rows += _engines(Path(place) / "more", few, named, (("local", 1),), rounds=1)[1:]
    return rows


def _engines(
    place: Path,
    source: Path,
    model: tuple[str, str],
    engines: Sequence[tuple[str, int]],
    *,
    rounds: int = 6,
) -> list[dict[str, object]]:
    """Every engine in turn, there and back, round after round: shares are medians of those within a
    round.

    A machine's speed moves by more within minutes than the engines differ.
    """
    from probe.model.load import load
    from probe.sweep import shards, work
    from probe.sweep.deal import Options, deal

    options, rows = Options(block=256), []
    loaded = load(model[1])
    sizes = (
        loaded.config.n_layers,
        loaded.config.n_heads,
        loaded.config.d_model,
        loaded.config.d_mlp,
    )
    work._loaded.cache_clear()
    spent: dict[tuple[str, int], list[Sequence[float]]] = {}
    turns = [who for turn in range(rounds) for who in (engines[::-1] if turn % 2 else engines)]
    for number, who in enumerate(turns):
        folder = place / f"set-{number}"
        job = work.SweepJob(folder, model[1], loaded.origin.sha256, options)
        with shards.only_writer(folder):
            began = time.perf_counter()
            index = deal([Source(source, source.name)], folder, options, causal=True)
            if not rows:
                rows.append(
                    _row(
                        (model[0], "reading", 1),
                        (index["rows"], time.perf_counter() - began),
                        folder,
                        sizes,
                    )
                )
            work.clear()
            measured, *seconds = _timed(job, work.units(str(number), index), who)
        spent.setdefault(who, []).append(seconds)
    count = rounds * measured // (sizes[0] * sizes[1])
    for who in engines:
        seconds, used = (sum(part) for part in zip(*spent[who], strict=True))
        rows.append(
            _row((model[0], *who), (count, seconds), folder, sizes)
            | {
                "of_plain_loop": _share(spent[engines[0]], spent[who], 0, workers=who[1]),
                "of_as_many_loops": _share(spent["local", who[1]], spent[who], 0),
                "per_processor_second": f"{count / used:.3g}",
                "of_plain_processor": _share(spent[engines[0]], spent[who], 1),
            }
        )
    return rows


def _share(
    before: Sequence[Sequence[float]],
    found: Sequence[Sequence[float]],
    which: int,
    *,
    workers: int = 1,
) -> float:
    """The median over rounds of how fast one is beside the other, by the clock (0) or the processor
    (1), per worker."""
    return round(
        median(a[which] / b[which] / workers for a, b in zip(before, found, strict=True)), 2
    )


def _timed(
    job: "SweepJob", units: tuple[list["Unit"], list["Unit"]], who: tuple[str, int]
) -> tuple[int, float, float]:
    """Rows of heads, and the seconds that the blocks took, by the clock and of the processors.

    Axes are fitted before and a few blocks made, by which every worker has loaded the model and
    whatever else it needs.
    """
    from probe.sweep.work import Workers, engine, in_process

    (name, workers), (fits, blocks) = who, units
    before = min(WARM, len(blocks) // 3)
    warm, rest = blocks[:before], blocks[before:]
    if name == "local" and workers > 1:
        list(in_process(job, fits))
        return _loops(job, (warm, rest), workers)
    with engine(Workers(name, number=workers), job.folder) as run:
        for some in (fits, warm):
            list(run(job, some))
        began, used = time.perf_counter(), _processor_seconds(name)
        receipts = list(run(job, rest))
        seconds = time.perf_counter() - began, _processor_seconds(name) - used
    return sum(receipt["heads"] for receipt in receipts), *seconds


def _loops(
    job: "SweepJob", blocks: tuple[list["Unit"], list["Unit"]], number: int
) -> tuple[int, float, float]:
    """So many plain loops at once, each in a process of its own over its share of the blocks, those
    to warm up with and the rest.
    """
    context = multiprocessing.get_context("spawn")
    ready, told = context.Barrier(number + 1), context.SimpleQueue()
    loops = [
        context.Process(
            target=_loop, args=(job, [some[part::number] for some in blocks], ready, told)
        )
        for part in range(number)
    ]
    for loop in loops:
        loop.start()
    ready.wait()
    began = time.perf_counter()
    found = [told.get() for _ in loops]
    seconds = time.perf_counter() - began
    for loop in loops:
        loop.join()
    return sum(heads for heads, _ in found), seconds, sum(used for _, used in found)


def _loop(
    job: "SweepJob",
    blocks: list[list["Unit"]],
    ready: "Barrier",
    told: "multiprocessing.SimpleQueue[tuple[int, float]]",
) -> None:
    from probe.sweep import work

    for unit in blocks[0]:
        work.make(job, unit)
    ready.wait()
    began = time.process_time()
    heads = sum(work.make(job, unit)["heads"] for unit in blocks[1])
    told.put((heads, time.process_time() - began))


def _processor_seconds(name: str) -> float:
    """What this process has used, or its workers."""
    if name == "local":
        return time.process_time()
    workers = [
        p
        for p in psutil.Process().children(recursive=True)
        if "spawn_main" in " ".join(p.cmdline())
    ]
    return sum(sum(worker.cpu_times()[:2]) for worker in workers)


def _row(
    who: tuple[str, str, int], timed: tuple[int, float], folder: Path, sizes: tuple[int, ...]
) -> dict[str, object]:
    """What holds for every row; the columns that compare engines are empty."""
    (*_, workers), (count, seconds) = who, timed
    facts = (
        count,
        round(seconds, 1),
        f"{count / seconds:.3g}",
        f"{count / seconds / workers:.3g}",
        "",
        "",
    )
    return dict(zip(COLUMNS, (*who, *facts, tokens_of(folder), *sizes, "", ""), strict=True))


def tokens_of(folder: Path) -> float:
    """Mean length up to the word, in tokens of about four characters."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(folder / "rows", columns=["end"])
    return round(sum(table["end"].to_pylist()) / table.num_rows / 4, 1)


MEMORY = ("sentences", "seconds", "sentences_per_second", "peak_megabytes")


def measure_memory(count: int, *more: str) -> dict[str, object]:
    """A whole `probe sweep` of so many sentences in a process of its own: how long it took and its
    largest memory."""
    with TemporaryDirectory() as place:
        source = make_sentences(Path(place) / "sentences.jsonl", count)
        command = [
            sys.executable,
            "-m",
            "probe",
            "sweep",
            f"--sentences={source}",
            f"--out={place}/out",
            *more,
        ]
        began = time.perf_counter()
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise RuntimeError(f"the sweep ended with {status}")
        seconds = time.perf_counter() - began
    return dict(
        zip(
            MEMORY,
            (count, round(seconds), round(count / seconds), round(used.ru_maxrss / 1024)),
            strict=True,
        )
    )


def write(path: Path, rows: list[dict[str, object]]) -> None:
    lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
    write_atomically(path, "\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=5000)
    parser.add_argument("--large", type=int, default=200, help="sentences for the larger model")
    parser.add_argument("--memory", type=int, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("reports"))
    given = parser.parse_args()
    os.environ |= ONE_THREAD
    # First the memory: the peak that the system tells of a process counts what its parent held when
    # it was started.
    if given.memory:
        write(given.out / "sweep_memory.csv", [measure_memory(count) for count in given.memory])
    if given.sentences:
        write(given.out / "sweep_throughput.csv", measure(given.sentences, given.large))


if __name__ == "__main__":
    main()
