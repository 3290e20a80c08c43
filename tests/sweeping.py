"""What the tests of sweeps share: a small model with a known answer, files of sentences, a look at
a whole sweep."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pyarrow.parquet
from handmade import make_handmade, make_sentences, resolver

from probe.provenance import sha256_of_bytes
from probe.sweep.deal import Options
from probe.text.sentences import Sentence

PLACE = (1, 2)
SMALL = Options(block=32, donors=8, fit_most=60)
COLUMNS = (
    "word",
    "sense",
    "text",
    "start",
    "end",
    "frame",
    "pair",
    "cue_start",
    "cue_end",
    "distance",
    "split",
)


def make_model(folder: Path) -> Path:
    """A model in which head 2 of layer 1 resolves the word, and no other."""
    return make_handmade(folder, [resolver(*PLACE)], seed=3)


def some_sentences(count: int, *, cues: int = 24) -> list[Sentence]:
    """Sentences with cues and no frames, so that none falls between the parts; the first `count`
    that differ."""
    frames = -(-count // (2 * 2 * cues)) + 2
    made = make_sentences(frames=frames, distances=(1, 3), cues=cues, seed=11)
    return list({(s.sense, s.text): s for s in made}.values())[:count]


def write_rows(path: Path, sentences: Sequence[Sentence], *, keep: Sequence[str] = COLUMNS) -> Path:
    """The sentences as JSONL, without frame and pair unless they are kept."""
    rows = [
        {name: value for name, value in asdict(s).items() if name in keep and value is not None}
        for s in sentences
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


WITHOUT_FRAMES = tuple(name for name in COLUMNS if name not in ("frame", "pair"))


def make_corpus(path: Path, count: int) -> Path:
    return write_rows(path, some_sentences(count), keep=WITHOUT_FRAMES)


def table(folder: Path, kind: str) -> pd.DataFrame:
    """All shards of a kind as one frame, in the order of sentences and heads."""
    frame = pyarrow.parquet.read_table(folder / kind).to_pandas()
    keys = [name for name in ("sentence", "layer", "head") if name in frame]
    return frame.sort_values(keys, ignore_index=True)


def fingerprints(folder: Path) -> dict[str, str]:
    """The sha256 of every shard by its name."""
    return {
        f"{kind}/{file.name}": sha256_of_bytes(file.read_bytes())
        for kind in ("heads", "sentences")
        for file in sorted((folder / kind).glob("*.parquet"))
    }


def temporaries(out: Path) -> list[str]:
    return [
        file.name
        for file in out.rglob("*")
        if file.name.endswith(".part") or file.name.startswith(".scratch-")
    ]


def lost_and_doubled(folder: Path, rows: int) -> tuple[int, int]:
    """Rows that are in no shard, and rows too many, of the table of sentences and of that of heads
    together."""
    sentences, heads = table(folder, "sentences"), table(folder, "heads")
    measured = sentences.loc[sentences["part"] == "report", "sentence"]
    per_sentence = heads.groupby("sentence").size()
    each = int(json.loads((folder / "manifest.json").read_bytes())["heads"]) * int(
        heads["layer"].max() + 1
    )
    lost = rows - sentences["sentence"].nunique() + len(set(measured) - set(per_sentence.index))
    lost += int((each - per_sentence).clip(lower=0).sum())
    doubled = (
        len(sentences)
        - sentences["sentence"].nunique()
        + int(heads.duplicated(["sentence", "layer", "head"]).sum())
    )
    return lost, doubled
