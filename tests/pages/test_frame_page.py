"""The page of a frame of heads: written, read back, and shared with no other result."""

from html import unescape

import pandas as pd
import pytest
from embedded import embedded

import probe
from probe import InputError

RIVER, LOAN = "The river bank", "The <b>mortgage</b> bank"


@pytest.fixture(scope="module")
def patched():
    return probe.patch(embedded(), RIVER, against=LOAN, at="bank")


def test_the_page_says_what_was_measured_and_has_the_rows_largest_first(patched, tmp_path):
    page = probe.write(patched, tmp_path)
    assert page.name == "heads.html"
    source = page.read_text(encoding="utf-8")
    assert "<b>mortgage" not in source
    assert (
        "How far the vector at “bank” moves when each head's output there is swapped between “The "
        "river bank” and “The <b>mortgage</b> bank”."
    ) in unescape(source)
    largest = patched.loc[patched["swap"].abs().idxmax()]
    first = source.split("<tbody>")[1].split("</tr>")[0]
    assert f'<td class="n">{largest["layer"]:.0f}</td><td class="n">{largest["head"]:.0f}' in first
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "heads.csv"), patched)


def test_a_frame_is_read_back_with_what_was_measured_and_writes_the_same_page(patched, tmp_path):
    lengths = probe.delta_e(embedded(), "The old tree by the bank", at="bank", by_source=True)
    assert lengths.attrs["measured"] == (
        "The length of what each head adds to the residual stream at “bank”, token 6 of “The old "
        "tree by the bank”, by the token that it reads."
    )
    for name, frame in {"patch": patched, "delta_e": lengths}.items():
        page = probe.write(frame, tmp_path / name).read_bytes()
        again = probe.read(tmp_path / name)
        pd.testing.assert_frame_equal(again, frame)
        assert again.attrs == frame.attrs
        assert probe.write(again, tmp_path / name).read_bytes() == page


def test_a_frame_without_heads_or_in_a_folder_of_another_result_is_refused(patched, tmp_path):
    with pytest.raises(InputError, match="expected layer, head and one of"):
        probe.write(pd.DataFrame({"layer": [0], "head": [1]}), tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "heads.csv").write_text("layer,head\n")
    with pytest.raises(InputError, match=r"heads\.csv in it was not made by probe"):
        probe.write(patched, tmp_path)
