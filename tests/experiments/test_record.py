"""A record as a file, without measuring one: what is written is read back, and nothing else is."""

import numpy as np
import pytest
import xarray as xr
from inside import LeftOut, WordRecord, is_whole, read_record, write_record
from measured import assert_same

from probe import InputError

RECORD = WordRecord(
    word="bank",
    kind="noun",
    columns={"share": 0.5},
    causal=True,
    left_out=(LeftOut("The bank.", "its cue comes after it"),),
    not_used={"a repeated sentence": 2},
    reason="",
    heads=2,
    has_heads=(True, False),
    depth=1,
    measured={
        "senses": {
            "0": xr.Dataset(
                {"net": ("head", np.array([0.5, np.nan]), {"unit": "gap"})},
                # one that names its axis, and one beside it
                coords={"head": [0, 1], "name": ("head", ["L0H0", "L0H1"])},
                attrs={"p": 0.25},
            )
        },
        "nouns": None,
    },
)


def test_a_record_is_read_back_unchanged_with_what_had_nothing_to_measure(tmp_path) -> None:
    written = write_record(tmp_path / "record", RECORD)
    assert_same(read_record(written), RECORD)
    assert (
        write_record(tmp_path / "again", read_record(written)).read_bytes() == written.read_bytes()
    )


def test_a_damaged_record_is_refused_wherever_it_was_cut(tmp_path) -> None:
    written = write_record(tmp_path / "record", RECORD)
    whole = written.read_bytes()
    assert is_whole(written)
    for end in range(0, len(whole), len(whole) // 20):
        written.write_bytes(whole[:end])
        assert not is_whole(written)
    with pytest.raises(
        InputError, match="the record is missing or damaged .* Run the same command"
    ):
        read_record(tmp_path / "absent")
