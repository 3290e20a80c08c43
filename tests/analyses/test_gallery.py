"""The gallery that `python reports/gallery.py --readme` writes: every picture, and the sentence of
each script."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "reports"


spec = importlib.util.spec_from_file_location("gallery", REPORTS / "gallery.py")
gallery = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gallery)
TEXT = gallery.README.read_text(encoding="utf-8")


def test_the_readme_is_generated_from_the_scripts():
    assert gallery.with_gallery(TEXT) == TEXT, "run python reports/gallery.py --readme"


def test_every_stored_picture_appears_and_every_link_works():
    linked = set(re.findall(r'<img src="([^"]+)"', TEXT))
    pictures = {
        str(path.relative_to(REPORTS))
        for path in REPORTS.rglob("*")
        if path.suffix in (".png", ".svg") and REPORTS / "site" not in path.parents
    }
    assert linked == pictures
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert len(links) >= 2 * len(gallery.analyses())
    assert [link for link in links if not (REPORTS / link).exists()] == []


def test_every_analysis_has_its_question_its_table_and_its_claim():
    for analysis in gallery.analyses():
        assert f"### {analysis.question}\n" in TEXT and analysis.question.endswith("?")
        assert f"[table]({analysis.table})" in TEXT
        assert (
            analysis.shown.endswith(".") and analysis.shown[:1].upper() + analysis.shown[1:] in TEXT
        )


def test_a_picture_is_shown_at_half_its_pixels_and_never_wider_than_the_page(tmp_path):
    for pixels, displayed in ((600, 300), (4000, gallery.WIDEST)):
        (tmp_path / "a.png").write_bytes(
            b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + pixels.to_bytes(4, "big") + bytes(9)
        )
        assert gallery.width(tmp_path / "a.png") == displayed
    for name in ("none.png", "drawn.svg"):
        assert gallery.width(tmp_path / name) == gallery.WIDEST


def test_a_script_without_a_claim_is_refused(tmp_path):
    (tmp_path / "silent.py").write_text("# %% [markdown]\n# # Why?\n#\n# Because.\n\n# %%\n")
    with pytest.raises(
        ValueError, match="^reading silent.py: expected a question and one line `Shown: `"
    ):
        gallery.read(tmp_path / "silent.py")


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a git checkout"
)
def test_git_tracks_pictures_and_small_tables_but_no_pages():
    outputs = [
        "ambiguity.html",
        "heads.csv",
        "walk/walk.html",
        "lessons/investigation.parquet",
        "manifest.json",
    ]
    tracked = ["lessons/x.png", "lessons/x.csv", "head_map.png", "gallery.py"]
    command = ["git", "check-ignore", "--no-index", *outputs, *tracked]
    ignored = subprocess.run(
        command, cwd=REPORTS, capture_output=True, text=True, check=False
    ).stdout.split()
    assert ignored == outputs
