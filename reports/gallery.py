"""Makes the pictures and tables of every analysis again, with the embedded model, and the part of
README.md that shows them.

`python reports/gallery.py` runs the analyses one after the other; `--readme` writes README.md only.
What it says of each is in the first cell of its script, so that it cannot go stale.
"""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "reports" / "README.md"
MARKER = "<!-- gallery: generated from the first cell of each script; the tests compare -->\n"
ORDER = (
    "a_word_in_motion",
    "a_real_model",
    "is_it_ambiguity",
    "every_word_as_a_cue",
    "why_it_attends",
    "what_the_heads_do_elsewhere",
    "which_shortcut_finds_the_heads",
    "ambiguity_in_general",
    "natural_text",
    *(
        "which_heads_resolve",
        "is_it_the_seed",
        "same_word_then_apart",
        "investigation",
        "adjectives_to_nouns",
        "what_creature_asks_for",
        "what_the_mask_hides",
    ),
    *(
        "cues_that_come_later",
        "which_source_words_choose_rive",
        "why_divide_by_sqrt_d",
        "plain_self_attention",
    ),
    *(
        "heads_and_the_output_matrix",
        "context_size",
        "counting_parameters",
        "directions",
        "a_long_description",
    ),
)
# Analyses of packaged models, and of models that are trained first: `make real` runs them.
OF_OTHER_MODELS = (
    "is_it_the_seed",
    "natural_text",
    "why_it_attends",
    "what_the_heads_do_elsewhere",
    "a_word_in_motion",
    "which_shortcut_finds_the_heads",
)
SCALE, WIDEST = 2, 760  # pictures are drawn at twice their size


@dataclass(frozen=True)
class Analysis:
    """One script: its question, the sentence on what its picture shows, and the files that it
    keeps, relative to reports/.
    """

    stem: str
    question: str
    shown: str
    pictures: tuple[str, ...]
    table: str


def analyses() -> list[Analysis]:
    """Every script that keeps a picture, in ORDER; those that are not in it come last."""
    found = [read(path) for path in sorted((ROOT / "analyses").glob("*.py"))]
    place = {stem: number for number, stem in enumerate(ORDER)}
    return sorted(
        (one for one in found if one.pictures), key=lambda one: place.get(one.stem, len(ORDER))
    )


def read(script: Path) -> Analysis:
    """What a script says of itself. Raises ValueError for one whose first cell has no question or
    no line `Shown: `."""
    text = script.read_text(encoding="utf-8")
    lines = text.partition("# %% [markdown]\n")[2].partition("\n\n")[0].splitlines()
    shown = [line.removeprefix("# Shown: ") for line in lines if line.startswith("# Shown: ")]
    if not lines or not lines[0].startswith("# # ") or len(shown) != 1:
        raise ValueError(
            f"reading {script.name}: expected a question and one line `Shown: ` in its first cell"
        )
    folder = re.search(r'"PROBE_OUT", "reports/?([^"]*)"', text)
    pictures = re.findall(r'out / "([^"]+\.(?:png|svg))"', text)
    inside = Path(folder[1] if folder else "")
    files = [str(inside / name) for name in (*pictures, f"{script.stem}.csv")]
    return Analysis(
        script.stem, lines[0].removeprefix("# # "), shown[0], tuple(files[:-1]), files[-1]
    )


def section(analysis: Analysis) -> str:
    """The Markdown of one analysis: what it shows, and where that comes from."""
    stem = analysis.stem
    made = [f"`python analyses/{stem}.py`", f"[script](../analyses/{stem}.py)"]
    notebook = ROOT / "analyses" / f"{stem}.ipynb"
    made += [f"[notebook](../analyses/{notebook.name})"] if notebook.exists() else []
    made += [f"[table]({analysis.table})"] if (README.parent / analysis.table).exists() else []
    return f"### {pictures_of(analysis)}\n\n{' · '.join(made)}\n"


def pictures_of(analysis: Analysis) -> str:
    """The Markdown of an analysis without links: its question, its pictures, and one sentence."""
    shown = analysis.shown[:1].upper() + analysis.shown[1:]
    plain = shown.replace("*", "").replace("`", "").replace('"', "&quot;")
    pictures = [
        f'<img src="{path}" width="{width(README.parent / path)}" alt="{plain}">'
        for path in analysis.pictures
    ]
    return "\n\n".join([analysis.question, *pictures, shown])


def width(picture: Path) -> int:
    """How wide a picture is shown, in pixels; WIDEST for one not made yet."""
    if not picture.exists():
        return WIDEST
    if picture.suffix == ".svg":
        return int(re.findall(r'width="(\d+)"', picture.read_text(encoding="utf-8"))[0])
    return min(WIDEST, int.from_bytes(picture.read_bytes()[16:20], "big") // SCALE)


def with_gallery(text: str) -> str:
    """README.md with everything after the marker made anew."""
    return text.partition(MARKER)[0] + MARKER + "\n" + "\n".join(section(one) for one in analyses())


def run(analysis: Analysis) -> None:
    """The script as a user would run it, from the root of the repository, with the embedded model
    and its own folder.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PROBE_MODEL", "PROBE_OUT")
    }
    started = time.monotonic()
    subprocess.run(
        [sys.executable, f"analyses/{analysis.stem}.py"], cwd=ROOT, env=environment, check=True
    )
    print(f"{analysis.stem}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    for one in analyses() if "--readme" not in sys.argv else ():
        if one.stem not in OF_OTHER_MODELS:
            run(one)
    README.write_text(with_gallery(README.read_text(encoding="utf-8")), encoding="utf-8")
