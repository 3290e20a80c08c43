"""The measurements on a graphics card in `tests/campaign/graphics_card.csv`."""

from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests" / "campaign" / "graphics_card.csv"


def test_every_certificate_and_every_verdict_held_on_a_graphics_card():
    rows = pd.read_csv(STORED)
    families = rows[rows["alike"].isna()]
    assert (families["held"] == families["rows"]).all()
    assert (families["largest"] <= 1e-5).all() and (families["from_cpu"] <= 1e-5).all()
    studies = rows[rows["alike"].notna()]
    assert len(studies) == 2 and studies["alike"].astype(bool).all()


def test_the_chapter_on_models_agrees_with_the_table():
    rows = pd.read_csv(STORED)
    card = rows["card"].unique().item().partition(",")[0]
    chapter = (ROOT / "reports" / "docs" / "pages" / "models.md").read_text("utf-8")
    families = int(rows["alike"].isna().sum())
    claim = f"on an {card} the certificates of all {families} families of the table"
    assert claim in " ".join(chapter.split())
