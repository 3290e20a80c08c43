"""The evidence of a made-up study: frames of distances, parts of heads, sets, controls, nouns in
the word's place and decompositions that fit its heads."""

import numpy as np
import pandas as pd

from probe.experiments.circuit import TABLES as CIRCUIT_TABLES
from probe.experiments.qk import BY_NOUNS
from probe.experiments.qk import TABLES as QK_TABLES
from probe.experiments.sets import TABLES
from probe.verdicts import PARTS

KEYS = ["word", "sense_a", "sense_b", "layer", "head"]
CURVES = list(TABLES["curves"].columns)
CONDITIONS = {
    "as measured": None,
    "labels permuted": 0.49,
    "later token": 0.65,
    "untrained model": 0.51,
}


def distances(heads: pd.DataFrame) -> pd.DataFrame:
    """The same effect at every distance, slightly less at longer distances."""
    rows = heads[heads["swap"].notna()]
    parts = [
        rows[KEYS].assign(distance=distance, net=rows["swap"] * (1 - 0.05 * distance))
        for distance in (1, 2, 3, 4)
    ]
    return pd.concat(parts, ignore_index=True)[[*KEYS[:3], "distance", *KEYS[3:], "net"]]


def head_parts(heads: pd.DataFrame) -> pd.DataFrame:
    """Heads that move the word without a change of attention, nearly all of it from the cue."""
    rows = heads[heads["swap"].notna()]
    parts = {
        "pattern_only": 0.1,
        "values_only": 0.9,
        "cue_only": 0.95,
        "other_only": 0.03,
        "ablation": 0.8,
    }
    columns = {}
    for name, part in parts.items():
        value = part * rows["swap"]
        columns |= {name: value, f"{name}_low": value - 0.04, f"{name}_high": value + 0.03}
    return rows[KEYS].assign(**columns, pairs=8)


def by_depth(heads: pd.DataFrame, layers: int) -> pd.DataFrame:
    """The same effect at every depth after a head, from the second on."""
    rows = heads[heads["swap"].notna()]
    parts = [
        rows[KEYS].assign(depth=depth, net=rows["net"]).query("layer < depth")
        for depth in range(2, layers + 1)
    ]
    return pd.concat(parts, ignore_index=True)[[*KEYS[:3], "depth", *KEYS[3:], "net"]]


def curves(word_heads: pd.DataFrame, read_at: int) -> pd.DataFrame:
    """Each top head adds its effect, until the whole gap is kept."""
    parts = []
    for word, rows in word_heads[word_heads["layer"] < read_at].groupby("word", sort=False):
        order = rows.sort_values("rank")
        names = [
            f"L{layer}H{head}" for layer, head in zip(order["layer"], order["head"], strict=True)
        ]
        faithfulness = np.minimum(
            np.cumsum([0, *order["net"].clip(lower=0).astype(float)]) / 0.62, 0.99
        )
        faithfulness[-1] = 1.0
        fewest = int(np.argmax(faithfulness >= 0.9))
        frame = pd.DataFrame(
            {
                "word": word,
                "area": 0.93,
                "smallest": fewest,
                "pairs": 12,
                "size": range(len(faithfulness)),
            }
        )
        lost = np.minimum(1.02 * faithfulness, 1.0)
        frame = frame.assign(added=[None, *names], faithfulness=faithfulness, necessity=lost)
        wide = {"faithfulness_low": faithfulness - 0.05, "faithfulness_high": faithfulness + 0.03}
        parts.append(frame.assign(**wide, necessity_low=lost - 0.04, necessity_high=lost + 0.02))
    return pd.concat(parts, ignore_index=True)[CURVES] if parts else pd.DataFrame(columns=CURVES)


# Attribution and replacements agree; they disagree; the head does not prefer the cue.
CUE_ATTRIBUTIONS = (
    {"contrast": 2.0, "p_contrast": 0.001, "p_query": 0.001, "p_key": 0.001},
    {"contrast": 1.5, "p_contrast": 0.001, "p_query": 0.4, "p_key": 0.001},
    {"contrast": 0.1, "p_contrast": 0.6, "p_query": 0.5, "p_key": 0.5},
)


def cue_attributions(
    word_heads: pd.DataFrame, senses: dict[str, tuple[str, ...]]
) -> dict[str, pd.DataFrame]:
    """For the top three heads of each word: 60 % of the contrast from MLP 0 at both tokens."""
    rows: dict[str, list[dict[str, object]]] = {name: [] for name in QK_TABLES}
    parts = ["token embedding", "heads 0", "MLP 0"]
    shares = np.array([[0.1, 0.02, 0.1], [0.003, 0.0, 0.1], [0.05, -0.073, 0.6]])
    for word, of_word in word_heads.groupby("word", sort=False):
        first = of_word.nsmallest(3, "rank")
        for head, attribution in zip(first.itertuples(), CUE_ATTRIBUTIONS, strict=True):
            key = {"word": word, "layer": head.layer, "head": head.head}
            ends = {"share": 0.6, "share_low": 0.52, "share_high": 0.67}
            largest = {"part_query": "MLP 0", "part_key": "MLP 0"}
            pair = dict(zip(("sense_a", "sense_b"), senses[str(word)], strict=False))
            ends |= {"noun_share": 0.7, "noun_share_low": 0.55, "noun_share_high": 0.85}
            ends |= {"noun_contrast": 0.8 * attribution["contrast"], "p_nouns": 0.02}
            counted = {"agreement": 0.8, "cue_first": 0.625, "sentences": 16, "pairs": 8}
            rows["why_it_attends"].append(key | pair | attribution | largest | ends | counted)
            for query, of_query in zip(parts, shares, strict=True):
                for part, share in zip(parts, of_query, strict=True):
                    pairs = {"part_query": query, "part_key": part}
                    score = {"score": share * attribution["contrast"]}
                    rows["qk_attribution"].append(key | pairs | score)
            for side, fraction in (("query", 0.7), ("key", 0.7), (BY_NOUNS, 0.1)):
                lost = {
                    "attributed": (fraction + 0.2) * attribution["contrast"],
                    "score": fraction * attribution["contrast"],
                }
                p_name = "p_nouns" if side == BY_NOUNS else f"p_{side}"
                p = {"attention": 0.1, "p": (attribution | ends)[p_name]}
                rows["qk_interventions"].append(key | {"side": side, "part": "MLP 0"} | lost | p)
            for part, write in zip(parts, (0.01, 0.04, 0.15), strict=True):
                rows["ov_attribution"].append(key | {"part_key": part, "write": write})
    return {
        name: pd.DataFrame(rows[name], columns=list(table.columns))
        for name, table in QK_TABLES.items()
    }


def random_sets(word_heads: pd.DataFrame, read_at: int) -> pd.DataFrame:
    """Ten random sets at three sizes, the best of which keep less than a third."""
    words = word_heads.loc[word_heads["layer"] < read_at, "word"].unique()
    rows = [
        {"word": word, "size": size, "faithfulness": 0.03 * draw * size / 9}
        for word in words
        for size in (1, 3, 9)
        for draw in range(11)
    ]
    return pd.DataFrame(rows, columns=["word", "size", "faithfulness"])


def nouns_in_place(words: pd.DataFrame, layers: int) -> pd.DataFrame:
    """The squared gaps of a word, growing with depth, and of 48 nouns: on average a quarter of the
    word's squared gap, and 64 % for the largest."""
    depths = np.arange(layers + 1)
    word_gap = 100.0 * depths**2
    shares = np.append(np.linspace(0.05, 0.4334, 47), 0.64)  # 0.25 on average
    parts = []
    for row in words[words["ranked"]].itertuples():
        key = {"word": row.word, "sense_a": row.sense_a, "sense_b": row.sense_b}
        of_word = pd.DataFrame(
            key | {"noun": row.word, "depth": depths, "gap": word_gap, "general_share": 1.0}
        )
        parts.append(of_word.assign(shared_axis=np.nan, sentences=48, surprisal=7.5))
        for number, share in enumerate(shares):
            noun = pd.DataFrame(key | {"noun": f"noun{number}", "depth": depths})
            noun = noun.assign(gap=share * word_gap, general_share=share, shared_axis=0.2)
            parts.append(noun.assign(sentences=48, surprisal=11.6))
    columns = [*KEYS[:3], "noun", "depth", "gap", "general_share", "shared_axis", "sentences"]
    columns.append("surprisal")
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def mlps(words: pd.DataFrame, read_at: int) -> pd.DataFrame:
    """MLPs that move every word by a tenth; that of layer 1 does more than at other nouns."""
    parts = []
    for row in words[words["ranked"]].itertuples():
        key = {"word": row.word, "sense_a": row.sense_a, "sense_b": row.sense_b}
        more = np.where(np.arange(read_at) == 1, 0.08, 0.0)
        frame = pd.DataFrame(key | {"layer": range(read_at), "net": 0.1})
        frame = frame.assign(nouns=0.1 - more, more=more, more_word_axis=more, more_length=more)
        frame = frame.assign(more_low=more - 0.02, more_high=more + 0.02, nouns_share=0.1)
        frame = frame.assign(more_at_surprisal=more, p_more=np.where(more > 0, 0.002, 1.0))
        frame = frame.assign(comparison=np.where(more > 0, "more", "same"))
        parts.append(frame[[*key, "layer", "net", *PARTS, "comparison"]])
    columns = [*KEYS[:3], "layer", "net", *PARTS, "comparison"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def separation_controls(heads: pd.DataFrame) -> pd.DataFrame:
    """As measured for the first pair of each word, and around a mean for every control."""
    rng = np.random.default_rng(3)
    first = heads.groupby("word")[["sense_a", "sense_b"]].transform("first")
    rows = heads[(heads["sense_a"] == first["sense_a"]) & (heads["sense_b"] == first["sense_b"])]
    parts = []
    for name, middle in CONDITIONS.items():
        auroc = rows["auroc"] if middle is None else middle + rng.normal(0, 0.05, len(rows))
        band = (0.4, 0.58) if name == "labels permuted" else (np.nan, np.nan)
        frame = rows[KEYS].assign(
            condition=name, untrained_p=0.31, auroc=auroc, low=band[0], high=band[1]
        )
        parts.append(
            frame[[*KEYS[:3], "condition", "untrained_p", *KEYS[3:], "auroc", "low", "high"]]
        )
    return pd.concat(parts, ignore_index=True)


def decomposition(readings: pd.DataFrame) -> pd.DataFrame:
    """Half of the gap per sentence: first from the tokens of the top heads, the remainder from
    an MLP."""
    parts = []
    for (word, number), group in readings.groupby(["word", "sentence"], sort=False):
        rows = group[
            (group["layer"] == group["layer"].iloc[0]) & (group["head"] == group["head"].iloc[0])
        ]
        rows = rows[rows["pos"] <= 6]
        sign = 1 if rows["sense"].iloc[0] == rows["sense_a"].iloc[0] else -1
        head_name = f"L{rows['layer'].iloc[0]}H{rows['head'].iloc[0]}"
        head = rows.rename(columns={"label": "token"}).assign(component=head_name)
        key = rows[["word", "sense", "sentence", "sense_a", "sense_b"]].iloc[[0]]
        mlp = key.assign(
            component="MLP 0", layer=0, contribution=0.5 * sign - rows["contribution"].sum()
        )
        start = key.assign(component="token embedding", contribution=0.0)
        parts.append(pd.concat([start, head, mlp]).assign(norm=1.0, total=0.5 * sign, closing=2e-8))
    columns = [
        "word",
        "sense",
        "sentence",
        "sense_a",
        "sense_b",
        "component",
        "layer",
        "head",
        "pos",
        "token",
        "role",
    ]
    columns += ["norm", "contribution", "total", "closing"]
    table = pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)
    return table.astype({"layer": "Int64", "head": "Int64", "pos": "Int64"})


def edges(heads: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """One edge to every planted head of the first pair of senses of a word, from three
    layers and tokens."""
    rows = heads[heads["swap"].notna() & (heads["net"] > 0.1)]
    first = rows.drop_duplicates("word")[["word", "sense_a", "sense_b"]]
    rows = rows.merge(first)
    ends = {"sender_layer": None, "sender_head": None, "sender_pos": "cue"}
    table = rows[KEYS].rename(columns={"layer": "receiver_layer", "head": "receiver_head"})
    table = table.assign(**ends, receiver_pos="word", channel="value", p=0.01, pairs=8)
    table = table.assign(
        fraction=1.0, direct=rows["net"], total=rows["net"], q=0.01, composition=float("nan")
    )
    table = table.assign(low=rows["net"] - 0.05, high=rows["net"] + 0.04)
    third = rows["net"] / 3  # also occurs at other nouns
    unknown = dict.fromkeys(("more_word_axis", "more_length", "more_at_surprisal"), np.nan)
    table = table.assign(nouns=third, more=2 * third, p_more=0.01, comparison="more", **unknown)
    table = table.assign(more_low=third, more_high=3 * third, nouns_share=third)
    grid = [
        {"component": name, "layer": layer, "head": None, "pos": pos, "behind": behind, "pairs": 8}
        | dict.fromkeys(
            ("denoise", "noise", "effect"),
            float((pos == "word") == (name == "attn_out")) / (1 + layer),
        )
        for name in ("resid_pre", "attn_out", "mlp_out")
        for layer in range(3)
        for pos, behind in (("cue", 0), ("cue + 1", 1), ("word", None))
    ]
    frames = {
        "positions": first.merge(pd.DataFrame(grid), how="cross"),
        "edges": table,
    }
    return {
        name: frames[name]
        .reindex(columns=[*table.columns])
        .astype(dict.fromkeys(table.missing, "Int64"))
        for name, table in CIRCUIT_TABLES.items()
    }
