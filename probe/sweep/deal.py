"""Which part of a corpus each sentence belongs to, decided without holding the corpus: by the hash of its cue word and frame.

What `probe.text.splits` does with all sentences of a word in memory is done here from two readings of the files. The first keeps, for
each word, the smallest hashes of its frames and of its cue words (or of its sentences, sense by sense, where cues are not
given); the second compares. The rules are the same: a word whose rows give a split keeps it (train is fit, all others are
measured); no frame and no cue word stands in both parts, and a sentence whose frame and cue fall apart is in neither. A third of
the groups, at most GROUPS, is fitted on. What differs: the groups are taken by hash and not in a shuffled order, so that neither
the order of the rows nor how many there are matters; there is no select part, because a sweep takes no leading heads; cue words
that share a pair are not kept together, because donors are drawn and not paired.

The smallest hashes of distinct names are a uniform sample of them: Bar-Yossef et al. 2002.

What was read before, kept in a file that is searched and not in memory: repeated sentences and shared beginnings.

A temporary SQLite file in a folder of its own, readable by its owner only and removed at the end.

The sentences of a corpus dealt out to blocks: read twice, checked, each row in exactly one block.

The first reading checks every row and keeps what `probe.sweep.deal` and `probe.sweep.deal` need; the second gives each row its
part, or the reason why it is in none, and writes blocks of at most `Options.block` rows of one word (words with few rows share
one). Of the sentences to fit on and of the donors only those with the smallest hashes are kept, a uniform sample.

Memory grows with the number of words and senses, not with that of sentences.
"""

import hashlib
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

from probe.errors import InputError
from probe.provenance import content_key
from probe.study.material import LATE, SAME
from probe.sweep import shards
from probe.sweep.shards import SCRATCH
from probe.text.files import Source, stream
from probe.text.sentences import REPEATS, Sentence, bad_rows, check_row
from probe.text.splits import FIT, GIVEN, GIVEN_PARTS, MIN_PER_SENSE, REPORT

GROUPS = 512
SHARE = 3
CROSSING = "its frame is on one side of the split and its cue on the other"


def hash_of(*names: object) -> int:
    """A number of 64 bits that depends on the names, and on nothing else."""
    digest = hashlib.blake2b(digest_size=8)
    for name in names:
        raw = str(name).encode()
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return int.from_bytes(digest.digest(), "big")


@dataclass
class Smallest:
    """The smallest distinct hashes seen, at most `most` of them."""

    most: int = GROUPS * SHARE
    heap: list[int] = field(default_factory=list)
    known: set[int] = field(default_factory=set)

    def add(self, value: int) -> None:
        if value in self.known or (len(self.heap) == self.most and value >= -self.heap[0]):
            return
        self.known.add(value)
        heapq.heappush(self.heap, -value)
        if len(self.heap) > self.most:
            self.known.discard(-heapq.heappop(self.heap))

    def limit(self) -> int | None:
        """The largest hash that is fitted on: a third of the groups, at most GROUPS. None where there are not two to part."""
        if len(self.heap) < 2:
            return None
        return sorted(self.known)[min(-(-len(self.heap) // SHARE), GROUPS) - 1]


@dataclass(frozen=True)
class Rule:
    """How the sentences of one word are parted: as given, or by the hashes up to which a frame, a cue, a sentence is fitted on."""

    given: bool
    frame: int | None
    cue: int | None
    sentence: Mapping[str, int | None]

    @property
    def design(self) -> str:
        if self.given:
            return GIVEN
        names = [name for name, limit in (("frame", self.frame), ("cue word", self.cue)) if limit is not None]
        return f"by {' and '.join(names)}, by their hash" if names else "by sentence, by its hash"


@dataclass
class Seen:
    """What the first reading keeps of a word: sentences by sense, whether a split is given, and the smallest hashes."""

    senses: Counter[str] = field(default_factory=Counter)
    given: bool = False
    frames: Smallest | None = field(default_factory=Smallest)
    cues: Smallest | None = field(default_factory=Smallest)
    sentences: dict[str, Smallest] = field(default_factory=dict)

    def add(self, sentence: Sentence, seed: int) -> None:
        self.senses[sentence.sense] += 1
        self.given = self.given or (sentence.split or "") in GIVEN_PARTS
        frame, cue, own = _groups(sentence, seed)
        self.frames = _added(self.frames, frame)
        self.cues = _added(self.cues, cue)
        self.sentences.setdefault(sentence.sense, Smallest()).add(own)

    def rule(self) -> Rule:
        frame, cue = (None if kept is None else kept.limit() for kept in (self.frames, self.cues))
        return Rule(self.given, frame, cue, {sense: kept.limit() for sense, kept in self.sentences.items()})


def _added(kept: Smallest | None, value: int | None) -> Smallest | None:
    """The hashes with one more; None as soon as one sentence of the word has no such group."""
    if kept is None or value is None:
        return None
    kept.add(value)
    return kept


def _groups(sentence: Sentence, seed: int) -> tuple[int | None, int | None, int]:
    cue = None if sentence.cue_start is None else sentence.text[sentence.cue_start : sentence.cue_end].casefold()
    return (
        None if sentence.frame is None else hash_of(seed, "frame", sentence.word, sentence.frame),
        None if cue is None else hash_of(seed, "cue", sentence.word, cue),
        hash_of(seed, "sentence", sentence.word, sentence.pair or sentence.text),
    )


def part_of(sentence: Sentence, rule: Rule, seed: int) -> tuple[str | None, str | None]:
    """Fit or report, or None with the reason why the sentence is in neither."""
    if rule.given:
        part = GIVEN_PARTS.get(sentence.split or "")
        reason = f"its split is {sentence.split!r}, expected one of {', '.join(GIVEN_PARTS)}"
        return (None, reason) if part is None else (FIT if part == FIT else REPORT, None)
    frame, cue, own = _groups(sentence, seed)
    sides = [(group, limit) for group, limit in ((frame, rule.frame), (cue, rule.cue)) if limit is not None]
    votes = {_up_to(group, limit) for group, limit in sides} or {_up_to(own, rule.sentence[sentence.sense])}
    return (None, CROSSING) if len(votes) > 1 else (FIT if votes.pop() else REPORT, None)


def _up_to(group: int | None, limit: int | None) -> bool:
    return group is not None and limit is not None and group <= limit


_TABLES = """
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536; PRAGMA temp_store = FILE;
CREATE TABLE sentence (key BLOB PRIMARY KEY, number INTEGER) WITHOUT ROWID;
CREATE TABLE beginning (key BLOB PRIMARY KEY, sense TEXT, mixed INTEGER) WITHOUT ROWID;
"""


class Read:
    """The sentences read so far: the number of the first like it, and whether its beginning tells the sense."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def add(self, sentence: Sentence, number: int) -> None:
        run = self.connection.execute
        run("INSERT OR IGNORE INTO sentence VALUES (?, ?)", (_identity(sentence), number))
        known = "ON CONFLICT (key) DO UPDATE SET mixed = 1 WHERE sense <> excluded.sense"
        run(f"INSERT INTO beginning VALUES (?, ?, 0) {known}", (_beginning(sentence), sentence.sense))

    def first(self, sentence: Sentence) -> int:
        """The number of the first sentence with the same word, sense, text and span."""
        found = self.connection.execute("SELECT number FROM sentence WHERE key = ?", (_identity(sentence),))
        return int(found.fetchone()[0])

    def is_mixed(self, sentence: Sentence) -> bool:
        """Whether a sentence of another sense of the word is the same up to the end of the word."""
        found = self.connection.execute("SELECT mixed FROM beginning WHERE key = ?", (_beginning(sentence),))
        return bool(found.fetchone()[0])


@contextmanager
def reading(folder: Path) -> Iterator[Read]:
    """An empty record in `folder`, gone at the end. Raises InputError where it cannot be kept."""
    try:
        with (
            TemporaryDirectory(dir=folder, prefix=SCRATCH) as place,
            closing(sqlite3.connect(Path(place, "seen.sqlite"), isolation_level=None)) as connection,
        ):
            connection.executescript(_TABLES)
            connection.execute("BEGIN")
            yield Read(connection)
    except (sqlite3.Error, OSError) as error:
        raise InputError(
            f"Keeping in {folder} what was read already: {error}; make room there, or choose another folder with --out, and run "
            "the same command again."
        ) from error


def _identity(sentence: Sentence) -> bytes:
    return _key(sentence.word, sentence.sense, sentence.text, str(sentence.start), str(sentence.end))


def _beginning(sentence: Sentence) -> bytes:
    return _key(sentence.word, sentence.text[: sentence.end], str(sentence.start))


def _key(*names: str) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name in names:
        raw = name.encode()
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.digest()


INDEX = "rows"
BUFFERED = 64
LONGEST_TEXT = 100_000
DONOR = "donor"
Record = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What decides the numbers beside model and sentences: the seed of splits and donors, and the sizes of samples and blocks."""

    seed: int = 0
    fit_most: int = 512
    donors: int = 64
    block: int = 1024


@dataclass
class Sample:
    """The `most` records with the smallest hashes."""

    most: int
    heap: list[tuple[int, int, Record]] = field(default_factory=list)

    def add(self, value: int, record: Record) -> None:
        item = (-value, -record["sentence"], record)
        if len(self.heap) < self.most:
            heapq.heappush(self.heap, item)
        else:
            heapq.heappushpop(self.heap, item)

    @property
    def records(self) -> list[Record]:
        """In order of their hashes."""
        return [record for *_, record in sorted(self.heap, key=lambda item: item[:2], reverse=True)]


@dataclass
class Samples:
    """What is fitted on and who gives, of one word, by sense."""

    fit: dict[str, Sample] = field(default_factory=dict)
    donors: dict[str, Sample] = field(default_factory=dict)


def read_all(sources: Sequence[Source]) -> Iterator[tuple[int, str, Sentence]]:
    """Number, place and sentence of every row. Raises InputError at the end when rows are bad, naming the first."""
    first, bad, number = None, 0, -1
    for source in sources:
        for row in stream(source):
            number += 1
            values, flaw = check_row(row)
            flaw = flaw or _flaw(values)
            if flaw:
                first, bad = first or (source.place, row.where.removeprefix(f"{source.name} "), flaw), bad + 1
            elif not bad:
                yield number, row.where, Sentence(**values, where=row.where)
    if first:
        raise bad_rows(*first, bad=bad, rows=number + 1)


def _flaw(values: Record) -> str | None:
    """What a sweep cannot use beside what no reader takes: a span on another word, a text that no model reads."""
    text, covered = values["text"], values["text"][values["start"] : values["end"]]
    if len(text) > LONGEST_TEXT:
        return f"the text has {len(text):,} characters, expected at most {LONGEST_TEXT:,}"
    if (values["distance"] or 0) > LONGEST_TEXT:
        return f"distance is {values['distance']}, expected the number of tokens from the cue to the word"
    if values["word"].casefold() not in covered.casefold():
        return f"characters {values['start']} to {values['end']} are {covered[:60]!r}, expected them to cover {values['word'][:60]!r}"
    return None


def deal(sources: Sequence[Source], folder: Path, options: Options, *, causal: bool) -> dict[str, Any]:
    """Write the blocks of rows and the samples of every word into `folder`; returns the index, which is stored last."""
    with reading(folder) as read:
        words: dict[str, Seen] = {}
        for number, _, sentence in read_all(sources):
            words.setdefault(sentence.word, Seen()).add(sentence, options.seed)
            read.add(sentence, number)
        rules = {word: seen.rule() for word, seen in words.items()}
        records = _parted(sources, read, (rules, options), causal=causal)
        blocks, samples = _write_blocks(records, folder, options)
    made = {word: _write_samples(folder, word, samples.get(word, Samples())) for word in sorted(words)}
    for word, about in made.items():
        about |= {"senses": dict(sorted(words[word].senses.items())), "design": rules[word].design}
    files = {name: about.pop("sha256") for about in [*blocks, *made.values()] for name in [_rows_file(about["key"])]}
    index = {"blocks": blocks, "words": made, "rows": sum(block["rows"] for block in blocks)}
    shards.finish(folder, INDEX, files={"rows.json": json.dumps(index).encode()}, facts={"rows_files": files})
    return index


def read_index(folder: Path) -> dict[str, Any] | None:
    """The index of rows that were dealt out completely, with the sha256 of every file of rows; None where there is none."""
    receipt = shards.done(folder, INDEX)
    if receipt is None:
        return None
    found = json.loads((folder / "rows.json").read_bytes())
    return found | {"files": receipt["rows_files"]} if isinstance(found, dict) else None


def require_index(folder: Path) -> dict[str, Any]:
    """The index; raises InputError where there is none."""
    found = read_index(folder)
    if found is None:
        raise shards.damaged(folder / "rows.json", "it is missing or damaged")
    return found


def _parted(
    sources: Sequence[Source], read: Read, how: tuple[dict[str, Rule], Options], *, causal: bool
) -> Iterator[tuple[Sentence, Record]]:
    """Every sentence with its part or the reason for none."""
    rules, options = how
    for number, where, sentence in read_all(sources):
        first = read.first(sentence)
        part, reason = part_of(sentence, rules[sentence.word], options.seed)
        if first != number:
            part, reason = None, f"{REPEATS} sentence {first}"
        elif causal and sentence.cue_start is not None and sentence.cue_start >= sentence.end:
            part, reason = None, LATE
        elif causal and read.is_mixed(sentence):
            part, reason = None, SAME
        record = asdict(sentence) | {"sentence": number, "where": where, "part": part, "reason": reason}
        yield sentence, record | {"draw": _draw(sentence, options.seed)}


def _draw(sentence: Sentence, seed: int) -> str:
    """The sentence's own random number, in hex: it decides samples and donors."""
    return f"{hash_of(seed, 'draw', sentence.word, sentence.sense, sentence.text, sentence.start, sentence.end):016x}"


def _write_blocks(
    records: Iterator[tuple[Sentence, Record]], folder: Path, options: Options
) -> tuple[list[Record], dict[str, Samples]]:
    samples: dict[str, Samples] = {}
    waiting: dict[str, list[Record]] = {}
    blocks: list[Record] = []
    held = 0
    for sentence, record in records:
        _sample(samples.setdefault(sentence.word, Samples()), record, options)
        waiting.setdefault(sentence.word, []).append(record)
        held += 1
        fullest = sentence.word if len(waiting[sentence.word]) == options.block else None
        if fullest is None and held == BUFFERED * options.block:
            fullest = max(waiting, key=lambda word: len(waiting[word]))
        if fullest is not None:
            held -= len(waiting[fullest])
            blocks.append(_write_block(folder, waiting.pop(fullest)))
    rest = [record for word in sorted(waiting) for record in waiting[word]]
    starts = range(0, len(rest), options.block)
    return blocks + [_write_block(folder, rest[start : start + options.block]) for start in starts], samples


def _sample(samples: Samples, record: Record, options: Options) -> None:
    if record["part"] is None:
        return
    kind, most = (samples.fit, options.fit_most) if record["part"] == FIT else (samples.donors, options.donors)
    kind.setdefault(record["sense"], Sample(most)).add(int(record["draw"], 16), record)


def _write_block(folder: Path, records: list[Record]) -> Record:
    key, sha256 = _write_rows(folder, records)
    return {"key": key, "rows": len(records), "words": sorted({r["word"] for r in records}), "sha256": sha256}


def _write_samples(folder: Path, word: str, samples: Samples) -> Record:
    """The sentences a word is fitted on and its donors, with, by sense, how many and up to which draw."""
    fit = {sense: sample.records for sense, sample in sorted(samples.fit.items())}
    donors = {sense: sample.records for sense, sample in sorted(samples.donors.items())}
    records = [record for rows in fit.values() for record in rows]
    records += [record | {"part": DONOR} for rows in donors.values() for record in rows]
    key, sha256 = _write_rows(folder, records, word)
    return {
        "key": key,
        "sha256": sha256,
        "rows": len(records),
        "fit": {sense: [len(rows), rows[-1]["draw"]] for sense, rows in fit.items()},
        "donors": {sense: len(rows) for sense, rows in donors.items()},
    }


def usable_senses(about: Record) -> list[str]:
    """The senses of a word that have enough sentences to fit on and somebody to give; fewer than two cannot be compared."""
    enough = [sense for sense, (count, _) in about["fit"].items() if count >= MIN_PER_SENSE]
    return sorted(sense for sense in enough if about["donors"].get(sense))


def _write_rows(folder: Path, records: list[Record], *name: str) -> tuple[str, str]:
    import pyarrow

    key = content_key("rows", *name, records)
    schema = pyarrow.schema([(column, _TYPES.get(column, pyarrow.string())) for column in COLUMNS])
    content = shards.parquet(pyarrow.Table.from_pylist(records, schema=schema))
    return key, shards.store(folder / _rows_file(key), content)


def _rows_file(key: str) -> str:
    return f"{shards.ROWS}/{key}.parquet"


def read_rows(folder: Path, key: str, sha256: str) -> list[Record]:
    """The records of a file of rows, once its bytes are those that were written."""
    import pyarrow
    import pyarrow.parquet

    content = shards.read_whole(folder, _rows_file(key), sha256)
    table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
    records: list[Record] = table.to_pylist()
    return records


def sentence_of(record: Record) -> Sentence:
    """The sentence of a record."""
    return Sentence(**{name: record[name] for name in _SENTENCE})


_SENTENCE = (
    *("word", "sense", "text", "start", "end", "frame", "pair", "cue_start", "cue_end", "distance", "split", "where"),
)
COLUMNS = ("sentence", *_SENTENCE, "part", "reason", "draw")
_TYPES = dict.fromkeys(("sentence", "start", "end", "cue_start", "cue_end", "distance"), "int64")


def require_something(index: dict[str, Any]) -> None:
    """Raises InputError where no word has two senses that can be compared."""
    if any(len(usable_senses(about)) > 1 for about in index["words"].values()):
        return
    word, about = next(iter(index["words"].items()))
    raise InputError(
        f"Sweeping {index['rows']} sentences of {len(index['words'])} words: no word has two senses with at least {MIN_PER_SENSE} "
        f"sentences in the {FIT} part and one in the {REPORT} part ({word!r} has {about['senses']}); give more sentences."
    )
