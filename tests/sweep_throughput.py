"""What a sweep costs: `python tests/sweep_throughput.py --out reports` writes sentences per second, and memory at two sizes.

In one run, with the same blocks of the same sentences and the embedded model loaded before the clock starts: a plain loop over
the blocks in one process, then Dask with one worker and with two. Sentences come from the grammar of the embedded model.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from probe.provenance import write_atomically

MODEL = "tiny-senses"
COLUMNS = (
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
)


def make_sentences(path: Path, count: int, *, seed: int = 5) -> Path:
    """Sentences of the grammar with an ambiguous word, its sense and, where it stands before the word, its cue."""
    from probe.embedded import grammar

    rng, topics = Random(seed), grammar.topics()
    with path.open("w", encoding="utf-8") as opened:
        while count:
            topic = rng.choice(topics)
            text = grammar.ambiguous(topic, rng)
            word = list(re.finditer(rf"\b{re.escape(topic.word)}s?\b", text))
            if not word:
                continue
            start, end = word[-1].span()
            row = {"word": topic.word, "sense": topic.sense, "text": text, "start": start, "end": end}
            cues = [found for cue in topic.cues if (found := re.search(rf"\b{re.escape(cue)}\b", text[:start]))]
            if cues:
                row |= {"cue_start": cues[0].start(), "cue_end": cues[0].end()}
            opened.write(json.dumps(row) + "\n")
            count -= 1
    return path


def measure(count: int) -> list[dict[str, object]]:
    """Reading and dealing out, which one process does, and one row per engine, whose clock runs over the blocks alone."""
    from probe.models import load
    from probe.sweep import shards, work
    from probe.sweep.deal import Options, deal, require_index
    from probe.sweep.engines import engine
    from probe.sweep.streams import sources

    options, rows, plain = Options(block=128), [], 0.0
    with TemporaryDirectory() as place:
        source = make_sentences(Path(place) / "sentences.jsonl", count)
        model = load(MODEL)
        sizes = (model.config.n_layers, model.config.n_heads, model.config.d_model)
        for name, workers in (("local", 1), ("dask", 1), ("dask", 2)):
            folder = Path(place) / f"set-{name}{workers}"
            job = work.Job(str(folder), MODEL, model.origin.sha256, options)
            with shards.only_writer(folder):
                began = time.perf_counter()
                deal(sources([source]), folder, options, causal=True)
                seconds = time.perf_counter() - began
                if not rows:
                    facts = (
                        "reading",
                        1,
                        count,
                        round(seconds, 1),
                        round(count / seconds),
                        round(count / seconds),
                        1.0,
                    )
                    rows.append(dict(zip(COLUMNS, (*facts, tokens_of(folder), *sizes), strict=True)))
                work.clear()
                fits, blocks = work.units(f"{name}{workers}", require_index(folder))
                with engine(name, folder, workers=workers) as run:
                    list(run(job, fits))  # every worker has loaded the model
                    began = time.perf_counter()
                    receipts = list(run(job, blocks))
                    seconds = time.perf_counter() - began
            measured = sum(receipt["heads"] for receipt in receipts) // (model.config.n_layers * model.config.n_heads)
            plain = plain or measured / seconds
            rate = measured / seconds
            facts = (
                name,
                workers,
                measured,
                round(seconds, 1),
                round(rate),
                round(rate / workers),
                round(rate / workers / plain, 2),
            )
            rows.append(dict(zip(COLUMNS, (*facts, tokens_of(folder), *sizes), strict=True)))
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


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
    parser.add_argument("--memory", type=int, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("reports"))
    given = parser.parse_args()
    if given.sentences:
        write(given.out / "sweep_throughput.csv", measure(given.sentences))
    if given.memory:
        write(given.out / "sweep_memory.csv", [measure_memory(count) for count in given.memory])


if __name__ == "__main__":
    main()
