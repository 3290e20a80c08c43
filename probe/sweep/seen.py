"""What was read before, kept in a file that is searched and not in memory: repeated sentences and shared beginnings.

A temporary SQLite file in a folder of its own, readable by its owner only and removed at the end.
"""

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from probe.errors import InputError
from probe.sentences import Sentence
from probe.sweep.shards import SCRATCH

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
