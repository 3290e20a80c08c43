"""The measurements on a graphics card in `reports/graphics_card.csv`."""

import pandas as pd
from campaign.any_processor import ROOT

KEPT = ROOT / "reports" / "graphics_card.csv"


def test_on_a_graphics_card_every_certificate_held_and_every_verdict_was_the_same():
    rows = pd.read_csv(KEPT)
    families = rows[rows["alike"].isna()]
    assert (families["held"] == families["rows"]).all()
    assert (families["largest"] <= 1e-5).all() and (families["from_cpu"] <= 1e-5).all()
    studies = rows[rows["alike"].notna()]
    assert len(studies) == 2 and studies["alike"].astype(bool).all()


def test_the_chapter_on_models_says_what_the_table_holds():
    rows = pd.read_csv(KEPT)
    card = rows["card"].unique().item().partition(",")[0]
    chapter = (ROOT / "reports" / "docs" / "pages" / "models.md").read_text("utf-8")
    families = int(rows["alike"].isna().sum())
    claim = f"on an {card} the certificates of all {families} families of the table"
    assert claim in " ".join(chapter.split())
