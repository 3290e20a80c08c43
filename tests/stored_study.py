"""A real study that is stored: bank, mole and window in the embedded model.

bank has two senses, mole four, and the senses of window have no gap. Tests of charts, claims and
pages read it; where a rule needs another number, they change that column of a copied table.
`python tests/stored_study.py` measures and stores it again.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

import probe

GOLDEN = Path(__file__).parent / "golden"
FOLDER = GOLDEN / "study"
WORDS = ("bank", "mole", "window")


@cache
def whole_study() -> probe.Study:
    study = probe.read(FOLDER)
    assert isinstance(study, probe.Study)
    return study


def stored_study(*words: str, **tables: pd.DataFrame) -> probe.Study:
    """The study, or these of its words only, with these tables in the place of its own.

    Tables are shared between tests, so none may be changed.
    """
    study = whole_study()
    frames = study.frames | tables
    if words:
        frames = {name: rows_of(frame, words) for name, frame in frames.items()}
    return replace(study, frames=frames)


def rows_of(frame: pd.DataFrame, words: Sequence[str]) -> pd.DataFrame:
    """The rows of these words; without any, an empty table as a study has it."""
    if "word" not in frame:
        return frame
    rows = frame[frame["word"].isin(words)]
    return rows if len(rows) else pd.DataFrame(columns=frame.columns)


def main() -> None:
    files = [GOLDEN / "sentences" / name for name in ("eight_words.csv", "no_gap.csv")]
    rows = pd.concat([pd.read_csv(file) for file in files], ignore_index=True)
    rows = rows[rows["word"].isin(WORDS)]
    study = probe.study("tiny-senses", sentences=rows, permutations=199)
    study = replace(study, data={}, files=())  # its tables are enough
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    with TemporaryDirectory() as name:
        folder = Path(name) / "study"
        probe.write(study, folder, command="probe report")
        for file in ("manifest.json", "tables.zip"):
            shutil.copy(folder / file, FOLDER)


if __name__ == "__main__":
    main()
