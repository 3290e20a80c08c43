"""A number under conditions: every mark is drawn, a line spans the marks of its row, words stand behind their line."""

import pandas as pd

from probe import charts

ROWS = pd.DataFrame(
    {
        "row": ["L1H0", "L0H0"] * 2,
        "what": ["adjectives"] * 2 + ["nouns"] * 2,
        "value": [0.9, 0.4, 0.2, 0.5],
    }
)


def test_marks_spans_words_and_axes_are_those_of_the_rows():
    found = charts.compared(ROWS, "attention", said={"L1H0": "looks at adjectives", "L0H0": ""}).to_dict()
    spans, marks, words = (found["datasets"][layer["data"]["name"]] for layer in found["layer"])
    assert [(row["row"], row["min"], row["max"]) for row in spans] == [("L1H0", 0.2, 0.9), ("L0H0", 0.4, 0.5)]
    assert len(marks) == 4
    assert {row["row"]: row["said"] for row in words} == {"L1H0": "looks at adjectives", "L0H0": ""}
    encoding = found["layer"][1]["encoding"]
    assert encoding["y"]["sort"] == ["L1H0", "L0H0"] and encoding["x"]["scale"]["domain"] == [0, 1]
    assert found["description"] == (
        "2 lines under 2 conditions. With adjectives the largest value is that of L1H0: 90\u202f%. L1H0 (looks at "
        "adjectives)."
    )


def test_ranks_stand_on_a_logarithmic_axis_that_begins_with_one():
    ranks = charts.compared(ROWS.assign(value=[1, 30, 2000, 5]), "rank", kind="rank").to_dict()
    scale = ranks["layer"][1]["encoding"]["x"]["scale"]
    assert scale["type"] == "log" and scale["domain"] == [1, 2000]
    assert ranks["layer"][1]["encoding"]["x"]["axis"]["values"] == [1, 10, 100, 1000]
