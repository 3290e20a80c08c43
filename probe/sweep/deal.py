"""The sentences of a corpus dealt out to blocks: read twice, checked, each row in exactly one
block.

The first reading checks every row and keeps, by word, the smallest hashes of frames, cue words and
texts, which say where to part its sentences into those that are fitted on and those that are
measured (`Rule`). The second gives each row its part, or the reason why it is in none, and writes
blocks of at most `Options.block` rows of one word (words with few rows share one). Neither the
order of the rows nor their number matters; a sentence whose frame and cue word fall on different
sides is in neither part. Of the sentences to fit on and of the donors only those with the smallest
hashes are kept, a uniform sample.

Memory grows with the number of words and senses, not with that of sentences: repeated sentences and
shared beginnings are kept in a temporary SQLite file, readable by its owner only and removed at the
end.
"""

import heapq
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow

from probe.errors import InputError
from probe.evidence.material import LATE, NOT_THE_WORD, SAME
from probe.provenance import content_key, digest_of, hash_of
from probe.sweep import shards
from probe.sweep.shards import SCRATCH
from probe.text.files import COLUMNS, Source
from probe.text.sentences import REPEATS, Sentence, stream_sentences
from probe.text.splits import FIT, GIVEN, GIVEN_PARTS, REPORT, STUDY

# As many groups as a direction of any width here can be fitted on; what is more is better measured
GROUPS = 512
# A third of the groups is fitted on; a sweep takes no leading heads, so nothing is selected on
SHARE = 3
GROUPED_BY = {"frame": "frame", "cue": "cue word"}
CROSSING = "its frame is on one side of the split and its cue on the other"
INDEX = "rows"
BUFFERED = (
    64  # blocks that wait to be filled, over all words: what keeps memory flat when words are many
)
DONOR = "donor"
Record = dict[str, Any]
_TABLES = """
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
PRAGMA cache_size = -65536; PRAGMA temp_store = FILE;
CREATE TABLE sentence (key BLOB PRIMARY KEY, number INTEGER, place TEXT) WITHOUT ROWID;
CREATE TABLE beginning (key BLOB PRIMARY KEY, sense TEXT, mixed INTEGER) WITHOUT ROWID;
"""
_SENTENCE = (*COLUMNS, "where")
_NUMBERS = ("sentence", "start", "end", "cue_start", "cue_end", "distance")
_SCHEMA = pyarrow.schema(
    [
        (column, pyarrow.int64() if column in _NUMBERS else pyarrow.string())
        for column in ("sentence", *_SENTENCE, "part", "reason", "draw")
    ]
)


@dataclass(frozen=True)
class Options:
    """What else decides the numbers: seed of splits and donors, sizes of samples and blocks, device
    and type."""

    seed: int = 0
    fit_most: int = 512
    donors: int = 64
    block: int = 1024
    device: str = "cpu"
    dtype: str = "float32"


@dataclass
class Smallest:
    """The `most` smallest distinct hashes seen, with what was hashed where it is given.

    A uniform sample of all that was seen, whatever its order (Bar-Yossef et al. 2002).
    """

    most: int = GROUPS * SHARE
    heap: list[int] = field(default_factory=list)
    known: dict[int, Any] = field(default_factory=dict)

    def add(self, value: int, item: Any = None) -> None:
        if value in self.known or (len(self.heap) == self.most and value >= -self.heap[0]):
            return
        self.known[value] = item
        heapq.heappush(self.heap, -value)
        if len(self.heap) > self.most:
            del self.known[-heapq.heappop(self.heap)]

    @property
    def items(self) -> list[Any]:
        """What was given with the hashes, in their order."""
        return [self.known[value] for value in sorted(self.known)]

    def limit(self) -> int | None:
        """The largest hash that is fitted on, of a third of the groups, at most GROUPS; None of
        fewer than two."""
        fitted = min(-(-len(self.known) // SHARE), GROUPS)
        return sorted(self.known)[fitted - 1] if len(self.known) > 1 else None


@dataclass
class WordSketch:
    """What the first reading keeps of a word: how many sentences by sense, whether a split is
    given, smallest hashes.

    `groups`: those of frames and of cue words, each as long as every sentence of the word has one ·
    `sentences`: by sense, those of the pairs or texts.
    """

    senses: Counter[str] = field(default_factory=Counter)
    given: bool = False
    groups: dict[str, Smallest] = field(
        default_factory=lambda: {kind: Smallest() for kind in GROUPED_BY}
    )
    sentences: dict[str, Smallest] = field(default_factory=dict)

    def add(self, sentence: Sentence, seed: int) -> None:
        self.senses[sentence.sense] += 1
        self.given = self.given or (sentence.split or "") in GIVEN_PARTS
        hashes = _hashes(sentence, seed)
        self.groups = {kind: kept for kind, kept in self.groups.items() if kind in hashes}
        for kind, kept in self.groups.items():
            kept.add(hashes[kind])
        self.sentences.setdefault(sentence.sense, Smallest()).add(hashes["sentence"])

    def rule(self) -> "Rule":
        limits = {
            kind: limit for kind, kept in self.groups.items() if (limit := kept.limit()) is not None
        }
        return Rule(
            self.given, limits, {sense: kept.limit() for sense, kept in self.sentences.items()}
        )


@dataclass(frozen=True)
class Rule:
    """How the sentences of one word are parted: as given, or by the largest hash of a frame, cue,
    sentence to fit on.

    Cue words that share a pair are not kept together, because donors are drawn and not paired.
    """

    given: bool
    groups: Mapping[str, int]
    sentence: Mapping[str, int | None]

    @property
    def design(self) -> str:
        if self.given:
            return GIVEN
        names = " and ".join(GROUPED_BY[kind] for kind in self.groups)
        return f"by {names}, by their hash" if names else "by sentence, by its hash"

    def part_of(self, sentence: Sentence, seed: int) -> tuple[str | None, str | None]:
        """Fit or report, or None with the reason why the sentence is in neither."""
        if self.given:
            part = GIVEN_PARTS.get(sentence.split or "")
            reason = f"its split is {sentence.split!r}, expected one of {', '.join(GIVEN_PARTS)}"
            return (None, reason) if part is None else (part, None)
        hashes, own = _hashes(sentence, seed), self.sentence[sentence.sense]
        fitted = {hashes[kind] <= limit for kind, limit in self.groups.items()}
        fitted = fitted or {own is not None and hashes["sentence"] <= own}
        return (None, CROSSING) if len(fitted) > 1 else (FIT if fitted.pop() else REPORT, None)


def _hashes(sentence: Sentence, seed: int) -> dict[str, int]:
    """Of its frame and of its cue word, where it has them, and of its pair or, where it has none,
    its text."""
    names = {
        "frame": sentence.frame,
        "cue": sentence.cue_word,
        "sentence": sentence.pair or sentence.text,
    }
    return {
        kind: hash_of(seed, kind, sentence.word, name)
        for kind, name in names.items()
        if name is not None
    }


class Register:
    """The sentences read so far: number and place of the first like it, and whether its beginning
    tells the sense."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.run = connection.execute

    def add(self, sentence: Sentence, number: int, where: str) -> None:
        self.run(
            "INSERT OR IGNORE INTO sentence VALUES (?, ?, ?)",
            (digest_of(*_identity(sentence)), number, where),
        )
        known = "ON CONFLICT (key) DO UPDATE SET mixed = 1 WHERE sense <> excluded.sense"
        self.run(
            f"INSERT INTO beginning VALUES (?, ?, 0) {known}",
            (_beginning(sentence), sentence.sense),
        )

    def first(self, sentence: Sentence) -> tuple[int, str]:
        """Number and place of the first sentence with the same word, sense, text and span."""
        key = digest_of(*_identity(sentence))
        number, place = self.run(
            "SELECT number, place FROM sentence WHERE key = ?", (key,)
        ).fetchone()
        return number, place

    def is_mixed(self, sentence: Sentence) -> bool:
        """Whether a sentence of another sense of the word is the same up to the end of the word."""
        return bool(
            self.run(
                "SELECT mixed FROM beginning WHERE key = ?", (_beginning(sentence),)
            ).fetchone()[0]
        )


@contextmanager
def reading(folder: Path) -> Iterator[Register]:
    """An empty register in `folder`, gone at the end. Raises InputError where it cannot be kept."""
    try:
        with (
            TemporaryDirectory(dir=folder, prefix=SCRATCH) as place,
            closing(
                sqlite3.connect(Path(place, "seen.sqlite"), isolation_level=None)
            ) as connection,
        ):
            connection.executescript(_TABLES)
            connection.execute("BEGIN")
            yield Register(connection)
    except (sqlite3.Error, OSError) as error:
        raise InputError(
            f"Keeping in {folder} what was read already: {error}; make room there, or choose "
            "another folder with "
            "--out, and run the same command again."
        ) from error


def _identity(sentence: Sentence) -> tuple[object, ...]:
    return sentence.word, sentence.sense, sentence.text, sentence.start, sentence.end


def _beginning(sentence: Sentence) -> bytes:
    return digest_of(sentence.word, sentence.text[: sentence.end], sentence.start)


Samples = dict[tuple[str, str], Smallest]


def deal(sources: Sequence[Source], folder: Path, options: Options, *, causal: bool) -> Record:
    """Write the blocks of rows and the samples of every word into `folder`; returns the index,
    which is stored last, with the sha256 of every file of rows.
    """
    with reading(folder) as register:
        words: dict[str, WordSketch] = {}
        for number, (source, where, sentence) in enumerate(stream_sentences(sources)):
            sketch = words.setdefault(sentence.word, WordSketch())
            if sentence.marks_the_word:
                sketch.add(sentence, options.seed)
            register.add(sentence, number, source.label(where))
        rules = {word: sketch.rule() for word, sketch in words.items()}
        records = _parted(sources, register, rules, options, causal=causal)
        blocks, samples = _write_blocks(records, folder, options)
    made = {word: _write_samples(folder, word, samples.get(word, {})) for word in sorted(words)}
    for word, about in made.items():
        about |= {"senses": dict(sorted(words[word].senses.items())), "design": rules[word].design}
    files = {_rows_file(about["key"]): about.pop("sha256") for about in [*blocks, *made.values()]}
    index = {"blocks": blocks, "words": made, "rows": sum(block["rows"] for block in blocks)}
    shards.finish(
        folder, INDEX, files={"rows.json": json.dumps(index).encode()}, facts={"rows_files": files}
    )
    return index | {"files": files}


def read_index(folder: Path) -> Record | None:
    """The index of rows that were dealt out completely, None where there is none."""
    receipt = shards.done(folder, INDEX)
    if receipt is None:
        return None
    index = json.loads((folder / "rows.json").read_bytes())
    return index | {"files": receipt["rows_files"]} if isinstance(index, dict) else None


def _parted(
    sources: Sequence[Source],
    register: Register,
    rules: Mapping[str, Rule],
    options: Options,
    *,
    causal: bool,
) -> Iterator[Record]:
    """Every row with its part or the reason for none, and its random number in hex, which draws
    samples and donors."""
    for number, (source, where, sentence) in enumerate(stream_sentences(sources)):
        part, reason = None, _refused(sentence, number, register, causal)
        if reason is None:
            part, reason = rules[sentence.word].part_of(sentence, options.seed)
        record = asdict(sentence) | {
            "sentence": number,
            "where": source.label(where),
            "part": part,
            "reason": reason,
        }
        yield record | {"draw": f"{hash_of(options.seed, 'draw', *_identity(sentence)):016x}"}


def _refused(sentence: Sentence, number: int, register: Register, causal: bool) -> str | None:
    """Why a sentence can be used in no part, as far as its text alone tells it."""
    first, where = register.first(sentence)
    if first != number:
        return f"{REPEATS} {where}"
    if not sentence.marks_the_word:
        return NOT_THE_WORD
    if causal and sentence.cue_after:
        return LATE
    return SAME if causal and register.is_mixed(sentence) else None


def _write_blocks(
    records: Iterator[Record], folder: Path, options: Options
) -> tuple[list[Record], dict[str, Samples]]:
    """The blocks, and by word and sense the sentences to fit on and the donors."""
    samples: dict[str, Samples] = {}
    waiting: dict[str, list[Record]] = {}
    blocks: list[Record] = []
    held = 0
    for record in records:
        word = record["word"]
        if record["part"] is not None:
            kind, most = (
                (FIT, options.fit_most) if record["part"] == FIT else (DONOR, options.donors)
            )
            sample = samples.setdefault(word, {}).setdefault(
                (kind, record["sense"]), Smallest(most)
            )
            sample.add(int(record["draw"], 16), record)
        waiting.setdefault(word, []).append(record)
        held += 1
        if held == BUFFERED * options.block:
            word = max(waiting, key=lambda word: len(waiting[word]))
        elif len(waiting[word]) < options.block:
            continue
        held -= len(waiting[word])
        blocks.append(_write_block(folder, waiting.pop(word)))
    rest = [record for word in sorted(waiting) for record in waiting[word]]
    starts = range(0, len(rest), options.block)
    return blocks + [
        _write_block(folder, rest[start : start + options.block]) for start in starts
    ], samples


def _write_block(folder: Path, records: list[Record]) -> Record:
    return _write_rows(folder, records) | {"words": sorted({record["word"] for record in records})}


def _write_samples(folder: Path, word: str, samples: Samples) -> Record:
    """The sentences a word is fitted on and its donors, with, by sense, how many and up to which
    draw."""
    fit, donors = (
        {sense: sample.items for (kind, sense), sample in sorted(samples.items()) if kind == wanted}
        for wanted in (FIT, DONOR)
    )
    records = [record for rows in fit.values() for record in rows]
    records += [record | {"part": DONOR} for rows in donors.values() for record in rows]
    return _write_rows(folder, records, word) | {
        "fit": {sense: [len(rows), rows[-1]["draw"]] for sense, rows in fit.items()},
        "donors": {sense: len(rows) for sense, rows in donors.items()},
    }


def usable_senses(about: Record) -> list[str]:
    """The senses of a word that have enough sentences to fit on and somebody to give: two or more
    can be compared."""
    enough = [sense for sense, (count, _) in about["fit"].items() if count >= STUDY.per_sense]
    return sorted(sense for sense in enough if about["donors"].get(sense))


def _write_rows(folder: Path, records: list[Record], *name: str) -> Record:
    key = content_key("rows", *name, records)
    sha256 = shards.store(
        folder / _rows_file(key), shards.parquet(pyarrow.Table.from_pylist(records, schema=_SCHEMA))
    )
    return {"key": key, "rows": len(records), "sha256": sha256}


def _rows_file(key: str) -> str:
    return f"{shards.ROWS}/{key}.parquet"


def read_rows(folder: Path, index: Record, key: str) -> list[Record]:
    """The records of a block or a word's samples, once their file's bytes are those that were
    written."""
    table = shards.read_parquet(folder, _rows_file(key), index["files"][_rows_file(key)])
    records: list[Record] = table.to_pylist()
    return records


def sentence_of(record: Record) -> Sentence:
    """The sentence of a record."""
    return Sentence(**{name: record[name] for name in _SENTENCE})


def require_something(index: Record) -> None:
    """Raises InputError where no word has two senses that can be compared."""
    if any(len(usable_senses(about)) > 1 for about in index["words"].values()):
        return
    word, about = next(iter(index["words"].items()))
    raise InputError(
        f"Sweeping {index['rows']} sentences of {len(index['words'])} words: no word has two "
        "senses with at least "
        f"{STUDY.per_sense} sentences in the {FIT} part and one in the {REPORT} part ({word!r} has "
        f"{about['senses']}); "
        "give more sentences."
    )
