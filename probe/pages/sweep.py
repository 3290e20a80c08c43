"""The page of a sweep, from its shards alone: no model is loaded, nothing is measured.

Charts, style and sentences are those of the report where they say the same. What a sweep cannot say
(verdicts, sets of heads, who wrote the gap, controls, single sentences) is not on the page, and the
page says so.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from probe import charts
from probe.charts import of_word
from probe.errors import InputError
from probe.evidence.columns import LEADERS, TABLES, dictionary
from probe.evidence.findings import Frames, head_name
from probe.pages import checks, output
from probe.pages.heads import TABLE_ROWS, head_numbers
from probe.pages.output import SWEEP
from probe.pages.words import gap_text, profiles
from probe.stats.numbers import counted, decimal, grouped, listed, measured, p_value, percent
from probe.stats.verdicts import LEVEL, SMALLEST
from probe.sweep import summary
from probe.sweep.work import SET

SHOWN = 24  # words whose charts a page holds before it is slow to open; the tables hold all
NO_VERDICT = "not given"
HOLD = TABLES | {
    "heads": "every head for every pair of senses",
    "left_out": "how many sentences of each word were left out, and why",
}


def read_manifest(sweep: str | os.PathLike[str]) -> tuple[Path, dict[str, Any]]:
    """The folder of the set of shards and its manifest, from the folder of the sweep or of the set.

    Raises InputError where no finished sweep is there.
    """
    place = Path(sweep)
    try:
        made = json.loads((place / "manifest.json").read_bytes())
        folder = place if place.name == f"{SET}{made['set']}" else place / f"{SET}{made['set']}"
        named = (
            isinstance(made["set"], str) and made["set"].isalnum()
        )  # a name of ours, and no way to somewhere else
        whole = isinstance(made["shards"], list) and {
            "counts",
            "layers",
            "heads",
            "model",
            "origin",
        } <= set(made)
        known = named and whole and folder.is_dir()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        known = False
    if not known:
        raise InputError(
            f"Reading the sweep in {place}: no finished sweep is there, expected the folder that "
            "`probe sweep --out` wrote; run that command to its end first."
        )
    return folder, made


def write_page(
    sweep: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    words: Sequence[str] | None = None,
) -> Path:
    """Write the page of a finished sweep, its frames and manifest into `out`; returns the path of
    the page.

    `words` are drawn on the page, the SHOWN with most sentences by default; the tables hold all.
    Raises InputError for a word that was not swept, and for a sweep that is not finished or is
    damaged.
    """
    folder, made = read_manifest(sweep)
    frames = summary.frames(summary.add_up(folder, made), folder)
    if frames["words"].empty:
        raise InputError(
            f"Reading the sweep in {folder}: none of its {made['counts']['in']} sentences was "
            f"measured, so "
            "there is nothing to draw; its manifest says why they were left out."
        )
    frames["columns"] = dictionary(frames)
    page = render(frames, made, _chosen(frames, words))
    return (
        output.write_folder(
            out, {SWEEP: page}, frames=frames, made={**made, "shards": len(made["shards"])}
        )
        / SWEEP
    )


def _words_of(frames: Frames) -> list[str]:
    """The words of the sweep in its order."""
    return [str(word) for word in frames["words"]["word"].unique()]


def _hues(pairs: pd.DataFrame) -> dict[str, str]:
    """Each sense of a word with the name of its hue in the style sheet."""
    return {sense: f"s{number % 6}" for number, sense in enumerate(charts.senses_of(pairs))}


def _chosen(frames: Frames, words: Sequence[str] | None) -> list[str]:
    known = _words_of(frames)
    for word in words or ():
        if word not in known:
            raise InputError(
                f"Drawing {word!r} from the sweep: it has no measured sentence, the words "
                f"there are "
                f"{', '.join(known[:SHOWN])}; ask for one of these."
            )
    sizes = frames["words"].groupby("word")["sentences_report"].sum()
    most = sizes.sort_values(ascending=False, kind="stable").index[:SHOWN]
    return list(words) if words else [word for word in known if word in set(most)]


def render(frames: Frames, made: Mapping[str, Any], words: Sequence[str]) -> str:
    """The page as one self-contained HTML file."""
    templates = output.environment("sweep", "report")
    maps = frames["word_heads"].assign(verdict=NO_VERDICT)
    asked = (
        listed(list(words))
        if len(words) <= 4
        else f"{', '.join(words[:3])} and {len(words) - 3} other words"
    )
    return templates.get_template("sweep.html.j2").render(
        question=f"Which heads move {asked}?",
        made=made,
        counts=made["counts"],
        cards=[_card(frames, maps, word) for word in words],
        others=len(_words_of(frames)) - len(words),
        limit=percent(charts.effect_limit(maps)),
        certificate=checks.certificate(frames["certificate"]),
        downloads=checks.downloads(frames, HOLD),
        dictionary=frames["columns"].to_dict("records"),
        level=LEVEL,
        smallest=percent(SMALLEST),
        **output.assets(templates, "style.css.j2", "page.js", leaders=LEADERS),
    )


def _card(frames: Frames, maps: pd.DataFrame, word: str) -> dict[str, Any]:
    pairs = of_word(frames["words"], word).to_dict("records")
    rows = of_word(maps, word)
    seen = rows.dropna(subset="rank")  # nothing above the read-out can move what is read there
    return {
        "word": word,
        "senses": _hues(of_word(frames["words"], word)),
        "said": _said(pairs, rows, word),
        "facts": _facts(pairs),
        "depth": profiles(
            frames["depth"],
            word,
            [(str(pair["sense_a"]), str(pair["sense_b"])) for pair in pairs],
            read_at=int(pairs[0]["depth"]),
        ),
        "map": _map(maps, word) if len(rows) else None,
        "rows": [
            head_numbers(row) | {"norm": decimal(row["norm"])}
            for row in seen.sort_values("rank").head(TABLE_ROWS).to_dict("records")
        ],
        "all": len(seen),
    }


def _map(maps: pd.DataFrame, word: str) -> Any:
    """The head map of the report; its description says nothing of verdicts, which a sweep does not
    give."""
    drawn = charts.head_map(maps, word, legend=False)
    spec = drawn.to_dict()
    return drawn.properties(description=str(spec["description"]).partition(" Shown to resolve")[0])


def _said(pairs: Sequence[Mapping[Any, Any]], rows: pd.DataFrame, word: str) -> str:
    """What was measured of a word, in a sentence or two: is there a gap, and which swaps move the
    word."""
    number = sum(pair["sentences_report"] for pair in pairs)
    apart = [pair for pair in pairs if pair["ranked"]]
    opening = f"In {counted(number, 'sentence')} that nothing was fitted on"
    if not apart:
        return (
            f"{opening}, the senses of “{word}” were not shown to be apart at the word, so "
            f"no effect is given."
        )
    some = f"{len(apart)} of its {len(pairs)} pairs of senses are apart"
    which = "its senses are apart" if len(pairs) == len(apart) else some
    moving = (
        rows[(rows["p_swap"] < LEVEL) & (rows["net"] >= SMALLEST)]
        .sort_values("rank")
        .to_dict("records")
    )
    if not moving:
        none = f"no single head's swap was shown to move it by {percent(SMALLEST)} or more"
        return f"{opening}, {which} at “{word}”; {none}."
    told = [
        f"{head_name(head)} {measured(head['net'], head['net_low'], head['net_high'])}"
        for head in moving
    ]
    rest = f", and {len(told) - 3} more" if len(told) > 3 else ""
    return (
        f"{opening}, {which} at “{word}”. Swapping the output of a head moves the word towards "
        f"the other sense: "
        f"{', '.join(told[:3])}{rest} of the gap, beyond a donor of the same sense."
    )


def _facts(pairs: Sequence[Mapping[Any, Any]]) -> list[tuple[str, str]]:
    first, lowest = pairs[0], decimal(min(pair["auroc"] for pair in pairs))
    read = ("read after layer", str(first["depth"] - 1))
    if len(pairs) > 1:
        return [read, ("pairs of senses", str(len(pairs))), ("lowest AUROC at the word", lowest)]
    fitted, gap = (
        f"{grouped(first['sentences_fit'])} sentences",
        f"{gap_text(first['gap'], first['gap_low'], first['gap_high'])}, {p_value(first['gap_p'])}",
    )
    return [("fitted on", fitted), read, ("gap on the rest", gap), ("AUROC at the word", lowest)]
