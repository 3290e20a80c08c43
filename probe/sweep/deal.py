"""The sentences of a corpus dealt out to blocks: read twice, checked, each row in exactly one block.

The first reading checks every row and keeps what `probe.sweep.parts` and `probe.sweep.seen` need; the second gives each row its
part, or the reason why it is in none, and writes blocks of at most `Options.block` rows of one word (words with few rows share
one). Of the sentences to fit on and of the donors only those with the smallest hashes are kept, a uniform sample.

Memory grows with the number of words and senses, not with that of sentences.
"""

import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from probe.errors import InputError
from probe.material import LATE, SAME
from probe.provenance import content_key
from probe.sentences import REPEATS, Sentence, bad_rows, check_row
from probe.splits import FIT, MIN_PER_SENSE, REPORT
from probe.sweep import shards
from probe.sweep.parts import Rule, Seen, hash_of, part_of
from probe.sweep.seen import Read, reading
from probe.sweep.streams import Source, stream

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
