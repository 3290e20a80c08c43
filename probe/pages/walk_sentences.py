"""The sentences of a walk, for its page, the explorer and a notebook.

Each sentence is fixed, and numbers and names from `probe.walkthrough` are filled in. What depends
on more is a row of the table of `facts`.
"""

from probe.stats.numbers import decimal, percent
from probe.walkthrough.choose import MAX_PREVIOUS, MAX_RESTING, Criterion, Sources, WordCriterion
from probe.walkthrough.walk import HeadWrite, Walk, WalkFindings

ANSWER = "{head} adds {size} of the vector's length to “{word}”, {part} of it from “{source}”."
ANSWER_SMALL = "{head} adds {size} of the vector's length to “{word}”, from many tokens."
ANSWER_SWAP = (
    "Swapping {head} alone moves “{word}” {size} of the way to its vector in the other sentence. "
    "It reads “{source}” here and “{second_source}” there."
)
ANSWER_COMPARED = (
    "{head} adds {size} of the vector's length to “{word}” here, mostly from “{source}”, and "
    "{second_size} there, mostly from “{second_source}”."
)
ANSWER_SAME = "“{word}” is the same vector in both sentences, after every layer."
ANSWER_LOGIT = "{head} alone adds {value} to the logit of “{word}”, mostly from “{source}”."

GUESSED = "“{word}” is followed because it is the last word {where}."
REPEATED = "“{word}” occurs more than once. The first occurrence is followed."

CAUTION_CUE = (
    "“{cue}” tells the sense of “{word}”, but it comes after the word, and {model} reads left to "
    "right: nothing at “{word}” can depend on it. A model that reads both ways can use it, such as "
    "tiny-senses-bidirectional."
)
CAUTION_NOTHING = (
    "No content word comes before “{word}”, and {model} reads left to right: what comes after it "
    "cannot change anything at “{word}”."
)

TRACE = (
    "Putting “{token}” in the place of “{second_token}” moves “{word}” of the other sentence "
    "{size} of the distance to this one."
)
TRACE_ARRIVES = (
    "From layer {layer} on, replacing the vector of “{word}” alone moves it at least halfway."
)
TRACE_NEVER = "Replacing the vector of “{word}” alone never moves it halfway."

# Why a head is followed: a row of the page's first table.
REASONS = {
    Criterion.REQUESTED: "it was asked for",
    Criterion.SWAP: "its swap alone moves “{word}” furthest: by {size}; first of {n} heads",
    Criterion.LOGIT: "it adds most to the logit of “{logit}”; first of {n} heads",
    Criterion.SENSE: (
        "it moves “{word}” furthest toward its sense “{sense}” by what it reads from {sources}: "
        "{size} of the way from “{other}”, measured on {sentences} sentences of the lexicon; first "
        "of {n} heads"
    ),
    Criterion.LENGTH: (
        "it moves “{word}” most by what it reads from {sources}: {size} of the vector's length; "
        "first of {n} heads"
    ),
}
SOURCES = {
    Sources.CONTENT_WORDS: "the other content words",
    Sources.WORDS: "the other words",
    Sources.ALL: "every token",
}
# Limits of the share of ΔE that counts as most of it. Parts of both signs can be larger than their
# sum, and sums in float32 can be slightly above 1.
MOST = 0.5
ALL = 1.05


def answer(findings: WalkFindings) -> str:
    """The headline of a walk: how far the head moves the word, and from which token."""
    parting = findings.parting
    write = findings.write
    values = {
        "head": f"L{findings.choice.layer}H{findings.choice.head}",
        "word": findings.word,
        "size": percent(write.relative),
        "source": write.largest.piece,
        "part": percent(min(write.largest.fraction, 1.0)),
    }
    if parting is not None:
        second = parting.second_write
        values |= {
            "second_size": percent(second.relative),
            "second_source": second.largest.piece,
        }
        if parting.depth is None:
            return ANSWER_SAME.format(**values)
        if findings.choice.criterion is Criterion.SWAP:
            return ANSWER_SWAP.format(**values | {"size": distance(findings.choice.size)})
        return ANSWER_COMPARED.format(**values)
    if findings.logit is not None:
        logit = findings.logit
        values |= {
            "word": logit.word,
            "value": decimal(logit.of_head),
            "source": logit.largest.piece,
        }
        return ANSWER_LOGIT.format(**values)
    return (ANSWER if has_main_source(write) else ANSWER_SMALL).format(**values)


def has_main_source(write: HeadWrite) -> bool:
    """Whether one token supplies most of a head's write."""
    return MOST <= write.largest.fraction <= ALL


def distance(size: float) -> str:
    """How far a swap moves the word. A distance that rounds to 0 % is not 0."""
    return "less than half a percent" if percent(size) == percent(0.0) else percent(size)


def facts(findings: WalkFindings) -> list[tuple[str, str]]:
    """The name and value of each row of the first table: why the head is followed, and more."""
    choice = findings.choice
    head = f"L{choice.layer}H{choice.head}"
    values = {
        "word": findings.word,
        "n": choice.n_heads,
        "size": distance(choice.size),
        "sources": SOURCES[choice.sources],
    }
    if choice.senses is not None:
        values |= {
            "sense": choice.senses.sense,
            "other": choice.senses.other_sense,
            "sentences": choice.senses.n_sentences,
        }
    if findings.logit is not None:
        values["logit"] = findings.logit.word
    rows = [(f"why {head}", REASONS[choice.criterion].format(**values))]
    if choice.n_resting:
        tokens = ", ".join(f"“{token}”" for token in choice.resting_tokens)
        limit = percent(MAX_RESTING)
        rows.append(
            ("sinks passed over", f"{choice.n_resting} (over {limit} of attention to {tokens})")
        )
    if choice.n_previous:
        limit = percent(MAX_PREVIOUS)
        rows.append(
            (
                "previous-token heads passed over",
                f"{choice.n_previous} (over {limit} to the token before)",
            )
        )
    if findings.previous is not None:
        rows.append(("attention to the token before", f"{percent(findings.previous)} in this text"))
    if findings.parting is not None and findings.parting.depth is not None:
        rows.append(
            (
                "the two vectors first differ",
                _depth_name(findings.parting.depth, findings.parting.n_layers),
            )
        )
    if findings.logit is not None:
        logit = findings.logit
        rows += [
            ("read at the token", f"“{logit.first_token or '·'}”, the first of “{logit.word}”"),
            (f"all {logit.n_heads} heads of cross-attention", decimal(logit.of_all_heads)),
            ("whole logit, against the mean of all tokens", decimal(logit.whole)),
            (f"logit of “{logit.rival}”, the likeliest other", decimal(logit.rival_logit)),
            ("tokens that are likelier", str(logit.n_likelier)),
        ]
    return rows


def _depth_name(depth: int, n_layers: int) -> str:
    """The name of the first depth at which the two vectors differ."""
    if depth == n_layers:
        return "after the last layer"
    names = {-1: "token embedding", 0: "embedding with position"}
    return names.get(depth, f"entering layer {depth}")


def guessed(findings: WalkFindings) -> str | None:
    """That the word was only guessed; None if it was requested or is in the lexicon."""
    choice = findings.word_to_follow
    if choice is None or choice.criterion is not WordCriterion.LAST:
        return None
    where = "that both sentences have" if choice.shared else "of the sentence"
    return GUESSED.format(word=findings.word, where=where)


def depths_read(findings: WalkFindings) -> str | None:
    """Which occurrence of the word is followed; None if it occurs once in each text."""
    # A position of a translation is not a word of its text.
    if findings.word_to_follow is None or max(findings.n_occurrences) == 1:
        return None
    return REPEATED.format(word=findings.word)


def caution(findings: WalkFindings) -> str | None:
    """Why nothing at the word can depend on its sense; None if something may."""
    if findings.caution is None:
        return None
    values = {"word": findings.word, "model": findings.model_name}
    if findings.caution.cue is None:
        return CAUTION_NOTHING.format(**values)
    return CAUTION_CUE.format(cue=findings.caution.cue, **values)


def travels(walk: Walk) -> str | None:
    """Which token causes the difference of two sentences, and the layer from which on the word
    holds half of it; the reason if it cannot be traced; None without a comparison.
    """
    if walk.causal_trace is None:
        return walk.trace_refusal
    summary = walk.causal_trace.summary()
    values = {
        "word": walk.causal_trace.word,
        "token": summary.token,
        "second_token": summary.second_token,
        "size": percent(summary.fraction),
        "layer": summary.arrival_layer,
    }
    arrives = TRACE_ARRIVES if summary.arrival_layer < summary.n_layers else TRACE_NEVER
    return f"{TRACE} {arrives}".format(**values)
