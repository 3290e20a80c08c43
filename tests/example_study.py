"""A made-up study with every frame of a real one, seeded, for tests of charts, sentences and pages
without a model.

bank has two senses and three clear heads (two resolvers, one opposing head), mole has four senses
(one of its six pairs without a gap), apple has no gap. Words are read after layer 2, the heads of
layer 3 at the end.
"""

from functools import cache
from itertools import combinations

import numpy as np
import pandas as pd
from example_evidence import (
    by_depth,
    cue_attributions,
    curves,
    decomposition,
    distances,
    edges,
    head_parts,
    mlps,
    nouns_in_place,
    random_sets,
    separation_controls,
)
from example_profiles import directions, elsewhere, profiles

from probe.experiments import cue_sample
from probe.experiments.heads import ATTENTION, RANKS, SWAP_COLUMNS
from probe.experiments.heads import TABLES as HEADS_TABLES
from probe.model.check import Certificate, Row
from probe.provenance import Origin
from probe.results.frames import of_experiment
from probe.studies.study import Study
from probe.verdicts import PARTS, REASONS, WRITES, best_verdicts

LAYERS, HEADS = 4, 4
READ_AT = 3
SENSES = {
    "bank": ("river", "money"),
    "mole": ("animal", "unit", "skin", "spy"),
    "apple": ("fruit", "company"),
}
NOT_APART = {("apple", "fruit", "company"), ("mole", "skin", "spy")}
PLANTED = {
    "bank": {(0, 2): 0.41, (1, 0): 0.18, (2, 3): -0.06},
    "mole": {(0, 1): 0.3, (0, 2): 0.28},
    "apple": {},
}
MEASURED = SWAP_COLUMNS[: SWAP_COLUMNS.index("net")]
TOKENS = (
    "<|endoftext|>",
    "The",
    " old",
    " {cue}",
    " near",
    " the",
    " {word}",
    " looked",
    " quiet",
    ".",
)


@cache
def _frames(texts: tuple[str, ...], apart: bool) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(7)
    words = _words(apart)
    heads = _heads(words, rng)
    heads = heads.join(_verdicts(heads))
    word_heads = _word_heads(heads, words)
    frames = {
        "words": words,
        "heads": heads[list(HEADS_TABLES["heads"].columns)],
        "verdicts": heads[["word", "sense_a", "sense_b", "layer", "head", "verdict", *REASONS]],
        "word_heads": word_heads,
        "depth": _depth(words, rng),
        "shares": _shares(words, rng),
        "sentences": _sentences(texts),
        "predictions": _predictions(texts),
        "left_out": _left_out(texts),
        "certificate": _certificate_frame(),
        "readings": _readings(word_heads, texts, rng),
        "showcase": _showcase(texts),
        "distances": distances(heads),
        "head_parts": head_parts(heads),
        "by_depth": by_depth(heads, LAYERS),
        "curves": curves(word_heads, READ_AT),
        "random_sets": random_sets(word_heads, READ_AT),
        "controls": nouns_in_place(words, LAYERS),
        "mlps": mlps(words, READ_AT),
        "mixers": of_experiment(HEADS_TABLES["mixers"], []),
        "separation_controls": separation_controls(heads),
    }
    frames |= edges(heads)
    frames |= cue_attributions(word_heads, SENSES)
    frames |= {name: of_experiment(table, []) for name, table in cue_sample.TABLES.items()}
    frames["decomposition"] = decomposition(frames["readings"])
    frames["profiles"] = profiles(word_heads, rng)
    frames["elsewhere"] = elsewhere(frames["readings"])
    frames["directions"] = directions(frames["readings"], TOKENS)
    return frames


def make_study(texts: tuple[str, ...] = (), *, apart: bool = True) -> Study:
    """The study. Each of `texts` appears as a sentence, a token, a showcase and a reason for
    leaving out.

    Without `apart` no word has a gap between its senses, so nothing is ranked. Its frames are shared:
    replace a frame by another, and change none.
    """
    frames = dict(_frames(texts, apart))
    records = frames["certificate"].drop(columns="ok").to_dict("records")
    rows = (
        Row(**row | {"layer": None if pd.isna(row["layer"]) else row["layer"]}) for row in records
    )
    certificate = Certificate("made-up", "float32", ("The river bank",), tuple(rows))
    options: dict[str, object] = {
        "words": list(SENSES),
        "seed": 7,
        "max_pairs": 64,
        "sentences": "made up",
    }
    return Study(
        "made-up",
        Origin("folder", "made-up", None, "ab" * 32),
        options,
        certificate,
        frames,
        "cd" * 8,
    )


def of_bank(study: Study) -> Study:
    """The study with the rows of bank alone, whose page takes half as long."""
    for name, frame in study.frames.items():
        study.frames[name] = frame.query("word == 'bank'") if "word" in frame else frame
    return study


def _pairs() -> list[tuple[str, str, str]]:
    return [(word, a, b) for word, senses in SENSES.items() for a, b in combinations(senses, 2)]


def _words(any_apart: bool) -> pd.DataFrame:
    rows = []
    for word, a, b in _pairs():
        apart = any_apart and (word, a, b) not in NOT_APART
        gap = 0.97 if apart else -0.02
        rows.append(
            {
                "word": word,
                "sense_a": a,
                "sense_b": b,
                "sentences_fit": 240,
                "sentences_report": 192,
                "pairs": 64,
            }
            | {
                "pair_design": "aligned pairs",
                "split_design": "5 folds by cue word and frame",
                "tokens_of_word": 1,
            }
            | {"causal": True, "depth": READ_AT, "auroc": 0.99 if apart else 0.52}
            | {
                "gap": gap,
                "gap_low": gap - 0.06,
                "gap_high": gap + 0.07,
                "gap_p": 0.0002 if apart else 0.4,
                "smallest_gap_p": 0.0002,
                "gap_form": gap,
                "gap_other_forms": np.nan,
            }
            | {"next_token_p": 0.002 if apart else 0.6, "continuation_p": 0.001 if apart else 0.7}
            | {"nuisance_p": 0.8, "untrained_p": 0.31}
            | {
                "negative_gaps": 0 if apart else 31,
                "cue_words": 14,
                "smallest_p": 0.001,
                "visible_d_pairs": 0.45,
            }
            | {"exploratory": False, "ranked": apart}
            | {
                "general_share": 0.25 if apart else np.nan,
                "largest_share": 0.64 if apart else np.nan,
                "ambiguity_p": 1 / 49 if apart else np.nan,
                "nouns_compared": 48 if apart else 0,
                "surprisal": 7.5,
                "surprisal_nouns": 11.6,
                "nouns_near": 5 if apart else 0,
                "ambiguity_p_near": np.nan,
                "sentences_not_compared": 0,
                "not_compared": "" if apart else "the gap between the senses is not significant",
            }
        )
    return pd.DataFrame(rows)


def _heads(words: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    parts = []
    for row in words.itertuples():
        layer, head = np.divmod(np.arange(LAYERS * HEADS), HEADS)
        planted = np.array(
            [PLANTED[row.word].get((int(a), int(b)), 0.0) for a, b in zip(layer, head, strict=True)]
        )
        swap = planted + rng.normal(0, 0.006, len(layer))
        key = {"word": row.word, "sense_a": row.sense_a, "sense_b": row.sense_b}
        frame = pd.DataFrame(key | {"layer": layer, "head": head})
        frame["auroc"] = np.clip(0.5 + planted + rng.normal(0.1, 0.12, len(layer)), 0, 1)
        frame["hedges_g"] = planted * 8
        causal = {
            "direct": swap * 0.9,
            "direct_low": swap * 0.9 - 0.04,
            "direct_high": swap * 0.9 + 0.03,
        }
        causal |= {"denoise": swap + 0.01, "noise": swap - 0.01, "swap": swap}
        causal |= {
            "swap_low": swap - 0.05,
            "swap_high": swap + 0.06,
            "same_sense": rng.normal(0, 0.003, len(layer)),
        }
        causal |= {"added_after": swap * 0.1}
        for name, values in causal.items():
            frame[name] = values if row.ranked else np.nan
        frame["attention_cue"] = np.clip(planted * 1.5 + 0.05, 0, 1)
        frame["attention_previous"] = 0.08
        net = frame["net"] = frame["swap"] - frame["same_sense"]
        frame["net_low"], frame["net_high"] = net - 0.05, net + 0.06
        frame["auroc_low"], frame["auroc_high"] = (
            frame["auroc"] - 0.1,
            frame["auroc"].clip(upper=0.9) + 0.1,
        )
        frame["rank"] = net.rank(ascending=False, method="first").astype("Int64")
        frame["rank_low"], frame["rank_high"] = frame["rank"], frame["rank"]
        frame["p_auroc"] = frame["q_auroc"] = np.where(frame["auroc"] > 0.62, 0.001, 0.4)
        frame["p_swap"] = frame["q_swap"] = np.where(frame["swap"] > 0.1, 0.013, 0.7)
        frame["next_token"], frame["p_next_token"] = 0.8 * net, frame["p_swap"]
        frame["continuation"], frame["p_continuation"] = 0.7 * net, frame["p_swap"]
        frame = frame.assign(**noun_columns(net))
        frame["read_depth"] = np.where(layer < READ_AT, READ_AT, LAYERS)
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)


def _verdicts(heads: pd.DataFrame) -> pd.DataFrame:
    """Large effects resolve, negative effects oppose, separation alone separates."""
    net = heads["swap"] - heads["same_sense"]
    conditions = [
        net < -0.03,
        (net > 0.1) & (heads["p_auroc"] < 0.05),
        (heads["p_auroc"] < 0.05) & net.notna(),
    ]
    verdict = np.select(conditions, ["opposes", "resolver", "separates"], "none")
    unmeasured = dict.fromkeys(REASONS, np.nan) | {"p_opposes": 1.0, "attention_next": 0.0}
    unmeasured |= {"ambiguity_p": np.where(net.notna(), 1 / 49, np.nan), "nouns_compared": 48}
    return pd.DataFrame({"verdict": verdict} | unmeasured, index=heads.index)


def noun_columns(net: pd.Series) -> dict[str, object]:
    """Heads that move this word by a third more than nouns, and small undecided ones; missing for
    words without swaps."""
    large = net.abs() > 0.1
    more = np.where(large, net / 3, 0.0)
    comparison = np.where(large, np.where(net > 0, "more", "less"), "undecided")
    of_swap = {"nouns": net - more, "more": more, "more_low": more - 0.02}
    of_swap |= {"more_high": more + 0.03, "p_more": np.where(large, 0.004, 0.6)}
    of_swap |= {"more_word_axis": more, "more_length": np.abs(more)}
    of_write = dict(zip(WRITES, of_swap.values(), strict=True))
    columns = of_swap | of_write | {"more_at_surprisal": more, "nouns_share": net}
    columns = {name: np.where(net.isna(), np.nan, values) for name, values in columns.items()}
    return columns | {"comparison": np.where(net.isna(), "", comparison)}


def _word_heads(heads: pd.DataFrame, words: pd.DataFrame) -> pd.DataFrame:
    parts = []
    for word in words[words["ranked"]]["word"].unique():
        rows = heads[(heads["word"] == word) & heads["swap"].notna()]
        mean = rows.groupby(["layer", "head"], as_index=False)[
            ["auroc", *MEASURED, *ATTENTION[:2]]
        ].mean()
        mean["attention_itself"] = 0.3
        mean["net"] = mean["swap"] - mean["same_sense"]
        wide = np.where(mean["net"].abs() > 0.1, 0.05, 0.02)
        mean["net_low"], mean["net_high"] = mean["net"] - wide, mean["net"] + wide
        mean["rank"] = mean["net"].rank(ascending=False, method="first").astype("Int64")
        above = [(mean["net_low"] > row.net_high).sum() for row in mean.itertuples()]
        below = [(mean["net_high"] < row.net_low).sum() for row in mean.itertuples()]
        mean["rank_low"], mean["rank_high"] = np.array(above) + 1, len(mean) - np.array(below)
        mean = mean.assign(**noun_columns(mean["net"]))
        parts.append(mean.assign(word=word).merge(best_verdicts(rows), on=["layer", "head"]))
    columns = [
        "word",
        "layer",
        "head",
        "auroc",
        *SWAP_COLUMNS,
        *RANKS,
        *ATTENTION,
        *PARTS,
        "comparison",
    ]
    columns += ["verdict", "resolves", "of", *WRITES]
    return (
        pd.concat(parts, ignore_index=True)[columns].astype(dict.fromkeys(RANKS, "Int64"))
        if parts
        else pd.DataFrame(columns=columns)
    )


def _depth(words: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    rows = []
    for pair in words.itertuples():
        for depth in range(-1, LAYERS + 1):
            grown = 0.0 if depth < 1 or not pair.ranked else min(0.5, 0.2 * depth)
            label = {-1: "token", 0: "token + position"}.get(depth, f"after layer {depth - 1}")
            for sense, sign in ((pair.sense_a, 1), (pair.sense_b, -1)):
                spread = 0.0 if depth < 0 else 0.1 + rng.uniform(0, 0.05)
                interval = {
                    "coordinate": sign * grown,
                    "low": sign * grown - spread,
                    "high": sign * grown + spread,
                }
                key = {
                    "word": pair.word,
                    "sense_a": pair.sense_a,
                    "sense_b": pair.sense_b,
                    "label": label,
                }
                rows.append(
                    key | {"depth": depth, "sense": sense} | interval | {"auroc": 0.5 + grown}
                )
    return pd.DataFrame(rows)


def _shares(words: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    rows = []
    for pair in words.itertuples():
        key = {"word": pair.word, "sense_a": pair.sense_a, "sense_b": pair.sense_b}
        components: list[tuple[str, int | None, int | None, float]] = [
            ("token embedding", None, None, 0.0)
        ]
        components.append(("position embedding", None, None, 0.001))
        for layer in range(READ_AT):
            for head in range(HEADS):
                planted = PLANTED[pair.word].get((layer, head), 0.0)
                components.append((f"L{layer}H{head}", layer, head, planted + rng.normal(0, 0.01)))
            components.append((f"attention bias {layer}", layer, None, 0.0))
            components.append((f"MLP {layer}", layer, None, 0.1))
        remainder = 1 - sum(share for *_, share in components)
        components[-1] = ("MLP 2", 2, None, 0.1 + remainder)
        rows += [
            key | dict(zip(("component", "layer", "head", "share"), item, strict=True))
            for item in components
        ]
    return pd.DataFrame(rows).astype({"layer": "Int64", "head": "Int64"})


def _sentences(texts: tuple[str, ...]) -> pd.DataFrame:
    """Four sentences of every sense, with cues named after it; the last of each has no partner."""
    rows = []
    for word, senses in SENSES.items():
        for number, sense in enumerate(senses * 4):
            text = (
                texts[number % len(texts)]
                if texts
                else f"The old {sense} near the {word} looked quiet."
            )
            start, group = max(text.find(f" {word}") + 1, 4), number // len(senses)
            rows.append(
                {
                    "word": word,
                    "sense": sense,
                    "text": text,
                    "start": start,
                    "end": start + len(word),
                    "form": word,
                    "frame": "quiet",
                }
                | {"pair": f"{word}/{group if group < 3 else number + 100}"}
                | {
                    "cue_start": 8,
                    "cue_end": 8 + len(sense),
                    "cue_inferred": False,
                    "distance": 3,
                    "position": 6,
                    "tokens_of_word": 1,
                }
                | {"part": ("tested", "learned from", "tested", "neither")[group]}
            )
    return pd.DataFrame(rows).astype(dict.fromkeys(("cue_start", "cue_end", "distance"), "Int64"))


def _predictions(texts: tuple[str, ...]) -> pd.DataFrame:
    """The tested sentences of every two senses; the last of each word is classified as the other
    sense."""
    sentences = _sentences(texts)
    rows = []
    for word, a, b in _pairs():
        of_word = sentences[sentences["word"] == word].reset_index(drop=True)
        tested = of_word[(of_word["part"] == "tested") & of_word["sense"].isin((a, b))]
        for number, sentence in tested.iterrows():
            is_a = sentence["sense"] == a
            is_right = number != tested.index[-1]
            rows.append(
                {
                    "word": word,
                    "sense_a": a,
                    "sense_b": b,
                    "sense": sentence["sense"],
                    "predicted": a if is_a == is_right else b,
                    "right": is_right,
                    "coordinate": 0.4 if is_a == is_right else -0.4,
                    "cue": sentence["sense"],
                    "words_before": 5,
                    "sentence": number,
                    "text": sentence["text"],
                }
            )
    return pd.DataFrame(rows)


def _left_out(texts: tuple[str, ...]) -> pd.DataFrame:
    reasons = ("its frame is on one side of the split and its cue on the other", *texts)
    rows = [
        {"word": "bank", "where": text, "reason": reason}
        for reason in reasons
        for text in (*texts, "A bank.")
    ]
    return pd.DataFrame(rows, columns=["word", "where", "reason"])


def _certificate_frame() -> pd.DataFrame:
    quantities = {
        "q": "x W_Q + b_Q",
        "scores": "Q Kᵀ / √d_head, masked",
        "pattern": "softmax(scores)",
    }
    quantities |= {"resid_post": "E′ + MLP"}
    rows = [
        {
            "layer": layer,
            "quantity": name,
            "formula": formula,
            "error": (layer + 1) * 1e-7,
            "scale": 3.2,
        }
        for layer in range(LAYERS)
        for name, formula in quantities.items()
    ]
    rows.append(
        {
            "layer": None,
            "quantity": "logits",
            "formula": "LN_f(E) W_Uᵀ",
            "error": 6.2e-7,
            "scale": 9.0,
        }
    )
    table = pd.DataFrame(rows).assign(tolerance=1e-5, stack="", note="", ok=True)
    return table[[*Row.__annotations__, "ok"]].astype({"layer": "Int64"})


def _readings(
    word_heads: pd.DataFrame, texts: tuple[str, ...], rng: np.random.Generator
) -> pd.DataFrame:
    parts = []
    for word, of_word in word_heads.groupby("word", sort=False):
        senses = SENSES[str(word)]
        for number, sense in enumerate([sense for sense in senses for _ in range(2)]):
            pieces = [piece.format(cue=sense, word=word) for piece in TOKENS] + list(texts)
            other_sense = next(name for name in senses if name != sense)
            a, b = sorted((sense, other_sense), key=senses.index)
            for row in of_word.nsmallest(3, "rank").itertuples():
                attention = rng.dirichlet(np.where(np.arange(len(pieces)) == 3, 4.0, 0.5))
                attention[7:10] = 0.0
                contribution = attention * (1 if sense == a else -1) * row.net
                key = {
                    "word": word,
                    "sense": sense,
                    "sentence": number,
                    "text": "".join(pieces[1:]),
                }
                key |= {"sense_a": a, "sense_b": b, "layer": row.layer, "head": row.head}
                frame = pd.DataFrame(key | {"pos": range(len(pieces)), "piece": pieces})
                frame["label"] = [f"{pos}·{piece.strip()}" for pos, piece in enumerate(pieces)]
                roles = {3: "cue", 6: "word"}
                frame = frame.assign(attention=attention, contribution=contribution)
                parts.append(
                    frame.assign(role=[roles.get(pos, "context") for pos in range(len(pieces))])
                )
    columns = [
        "word",
        "sense",
        "sentence",
        "text",
        "sense_a",
        "sense_b",
        "layer",
        "head",
        "pos",
        "piece",
        "label",
    ]
    columns += ["attention", "contribution", "role"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _showcase(texts: tuple[str, ...]) -> pd.DataFrame:
    def row(text: str, word: str, sense: str, cue: str, reads_as: str | None) -> dict[str, object]:
        start, cue_start = text.lower().index(word), text.index(cue)
        a, b = SENSES[word][:2] if sense in SENSES[word][:2] else (SENSES[word][0], sense)
        after = cue_start > start
        fields: dict[str, object] = {
            "text": text,
            "word": word,
            "sense": sense,
            "start": start,
            "end": start + len(word),
        }
        fields |= {
            "cue": cue,
            "cue_start": cue_start,
            "cue_end": cue_start + len(cue),
            "cue_after": after,
        }
        fields["note"] = "A note."
        fields |= {
            "reads_as": reads_as,
            "coordinate": np.nan if after else 0.43,
            "sense_a": None if after else a,
        }
        return fields | {"sense_b": None if after else b, "difference": 3e-8 if after else 0.0}

    rows = [
        row("The river bank", "bank", "river", "river", "river"),
        row("Make a deposit at the bank", "bank", "money", "deposit", "river"),
        row("One mole of carbon dioxide", "mole", "unit", "carbon", None),
        row("Please buy an apple and an orange", "apple", "fruit", "orange", None),
    ]
    rows += [row(f"river bank {text}", "bank", "river", "river", "river") for text in texts]
    return pd.DataFrame(rows)
