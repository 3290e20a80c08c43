"""The sentences about a walk: why this head, what it adds and from where, what to be careful about,
where the difference of two sentences stands. For the page, the explorer and a notebook alike.

Each takes facts that `probe.walkthrough` found, and returns English.
"""

from probe.stats.numbers import counted, decimal, percent
from probe.walkthrough.choose import (
    MAX_RESTING,
    Caution,
    Criterion,
    HeadChoice,
    Sources,
    WordCriterion,
)
from probe.walkthrough.scene import CausalTrace
from probe.walkthrough.walk import HeadWrite, LargestPart, LogitFindings, Walk, WalkFindings

# A largest part is told as a fraction of its sum where it is most of it; 1.05, since float32 sums
# of parts of both signs may pass 1 a little.
MOST_OF_IT = 0.5
ALL_OF_IT = 1.05
SOURCE_WORDS = {Sources.CONTENT_WORDS: "content words", Sources.WORDS: "words"}


def answer(findings: WalkFindings) -> str:
    """What a walk says first: where two sentences part, or what the head adds and from where."""
    if findings.parting is not None:
        return _parting(findings)
    if not findings.one_text:
        added = _head_adds(findings) if findings.logit is None else _logit(findings)
        return f"After “{findings.word}”, {added}"
    return f"At “{findings.word}”, {_head_adds(findings)}"


def guessed(findings: WalkFindings) -> str | None:
    """That the word was only guessed; None where it was requested, or the lexicon has it."""
    choice = findings.word_to_follow
    if choice is None or choice.criterion is not WordCriterion.LAST:
        return None
    where = "that both sentences have" if choice.shared else "of the sentence"
    return f"“{findings.word}” was chosen only because it is the last word {where}."


def places(findings: WalkFindings) -> str | None:
    """Which place of the word is followed; None where it stands once."""
    often = []
    for number, where in zip(findings.n_occurrences, ("this", "the other"), strict=False):
        if number > 1:
            times = "twice" if number == 2 else f"{number} times"
            often.append(f"{times} in {where} sentence")
    # A position of a translation is no word of its text.
    if not often or findings.word_to_follow is None:
        return None
    return f"“{findings.word}” stands {' and '.join(often)}: the first is followed."


def because(findings: WalkFindings) -> str:
    """Why the head is followed."""
    choice = findings.choice
    head = _head(choice)
    if choice.criterion is Criterion.REQUESTED:
        return f"{head} was asked for."
    reason = {
        Criterion.SWAP: _by_swap,
        Criterion.LOGIT: _by_logit,
        Criterion.SENSE: _by_sense,
        Criterion.LENGTH: _by_length,
    }[choice.criterion]
    return f"{head} is followed because, {_compared(choice)}, {reason(findings)}"


def caution(findings: WalkFindings) -> str | None:
    """Why nothing at the word can tell its sense; None where something may."""
    if findings.caution is None:
        return None
    return _caution(findings.caution, findings.word, findings.model_name)


def travels(walk: Walk) -> str | None:
    """Where the difference of two sentences stands, layer by layer, or why that cannot be traced;
    None where nobody asked.
    """
    if walk.causal_trace is None:
        return walk.trace_refusal
    return _travels(walk.causal_trace)


def _head(choice: HeadChoice) -> str:
    return f"L{choice.layer}H{choice.head}"


def _introduced(choice: HeadChoice) -> str:
    """The head where a text names it first: its name says nothing to who has never seen one."""
    return f"head {choice.head} of layer {choice.layer} ({_head(choice)})"


def _compared(choice: HeadChoice) -> str:
    """Of which heads it is the first."""
    if choice.one_layer:
        return f"of {choice.n_heads} heads of layer {choice.layer}"
    return f"of {choice.n_heads} heads"


def _distance(size: float) -> str:
    """How far a swap moves the word: 0 % would say that it does not."""
    return "less than half a per cent" if percent(size) == percent(0.0) else percent(size)


def _by_swap(findings: WalkFindings) -> str:
    size = _distance(findings.choice.size)
    return (
        f"swapped by itself it moves “{findings.word}” furthest toward its vector in the other "
        f"sentence: {size} of the way."
    )


def _by_logit(findings: WalkFindings) -> str:
    assert findings.logit is not None
    return f"it adds most to the logit of “{findings.logit.word}”."


def _by_sense(findings: WalkFindings) -> str:
    senses = findings.choice.senses
    assert senses is not None
    size = percent(findings.choice.size)
    return (
        f"it moves “{findings.word}” furthest towards its sense “{senses.sense}”"
        f"{_by_what_it_takes(findings)}: {size} of the way from “{senses.other_sense}”. Where the "
        f"two senses lie was measured in {senses.n_sentences} sentences of the lexicon."
    )


def _by_length(findings: WalkFindings) -> str:
    size = percent(findings.choice.size)
    return (
        f"it pushes “{findings.word}” most{_by_what_it_takes(findings)}: with a vector {size} as "
        f"long as that of “{findings.word}” after the attention of that layer."
        f"{_passed_over(findings.choice)}"
    )


def _by_what_it_takes(findings: WalkFindings) -> str:
    """By what it takes from which tokens; nothing where it may look at itself alone."""
    sources = SOURCE_WORDS.get(findings.choice.sources)
    if sources is None:
        return ""
    side = "before it"
    if not findings.causal:
        side = "around it" if findings.one_text else "of the source"
    return f" by what it takes from the {sources} {side}"


def _passed_over(choice: HeadChoice) -> str:
    """How many heads rest on which tokens, and were not chosen for it."""
    if not choice.n_resting:
        return ""
    tokens = " or ".join(f"“{token}”" for token in choice.resting_tokens)
    limit = percent(MAX_RESTING)
    gives = f"gives more than {limit} of its attention to {tokens} was"
    heads = "One head that "
    if choice.n_resting > 1:
        gives = f"give more than {limit} of their attention to {tokens} were"
        heads = f"{choice.n_resting} heads that "
    return f" {heads}{gives} passed over: heads often look there whatever the text says (a sink)."


def _caution(caution: Caution, word: str, model_name: str) -> str:
    reads = f"{model_name} reads left to right"
    if caution.cue is not None:
        return (
            f"What tells the sense of “{word}” here, “{caution.cue}”, comes after it, and {reads}: "
            f"nothing at “{word}” can depend on it. A model that reads both ways can use it, as "
            "tiny-senses-bidirectional."
        )
    before = "No content word stands" if caution.only_function_words else "Nothing stands"
    return (
        f"{before} before “{word}”, and {reads}: what comes after it cannot change anything at "
        f"“{word}”."
    )


def _head_adds(findings: WalkFindings) -> str:
    """How much the head adds at the position, and from where."""
    length = decimal(findings.write.length)
    source = _mostly_from(findings.write)
    return f"{_introduced(findings.choice)} adds a vector of length {length}, {source}."


def _parting(findings: WalkFindings) -> str:
    """How far the head moves the word, what it adds in each sentence, and where the two part."""
    parting = findings.parting
    assert parting is not None
    word = findings.word
    if parting.depth is None:
        return (
            f"At “{word}” the two sentences are the same at every depth: nothing that it reads "
            "differs."
        )
    if not parting.same_tokens:
        where = "is cut into other tokens in the other sentence"
    elif parting.depth == 0:
        same = "is the same token"
        if parting.n_tokens > 1:
            pieces = counted(parting.n_tokens, "token", words=True).lower()
            same = f"is cut into the same {pieces}"
        where = f"{same} in both sentences, at another position"
    else:
        differs = "behind the last layer"
        if parting.depth < parting.n_layers:
            differs = f"where it enters layer {parting.depth}"
        until = "up to where" if parting.depth > 1 else "where"
        where = (
            f"is one and the same vector in both sentences {until} it enters layer "
            f"{parting.depth - 1}, and differs {differs}"
        )
    length = decimal(findings.write.length)
    second_length = decimal(parting.second_write.length)
    is_named = findings.choice.criterion is Criterion.SWAP
    adds = _head(findings.choice) if is_named else _introduced(findings.choice)
    return (
        f"{_swapped_alone(findings)}What {adds} adds has length {length} here, "
        f"{_mostly_from(findings.write)}, and {second_length} there, "
        f"{_mostly_from(parting.second_write)}. “{word}” {where}."
    )


def _swapped_alone(findings: WalkFindings) -> str:
    """How far the head's swap moves the word, where the head was chosen by that."""
    choice = findings.choice
    if choice.criterion is not Criterion.SWAP:
        return ""
    return (
        f"Given what it computes in the other sentence, {_introduced(choice)} alone moves "
        f"“{findings.word}” {_distance(choice.size)} of the way to its vector there, read after "
        "the last layer. "
    )


def _logit(findings: WalkFindings) -> str:
    """What the head adds to the logit of the word, and from where; all heads; the whole logit."""
    logit = findings.logit
    assert logit is not None
    first_token = ""
    if logit.first_token.casefold() != logit.word.strip().casefold():
        first_token = f" (of its first token, “{logit.first_token or '·'}”)"
    source = _most_of(logit.largest) or (
        f"the largest part, {decimal(logit.largest.value)}, from “{logit.largest.piece}”"
    )
    return (
        f"{_introduced(findings.choice)} by itself adds {decimal(logit.of_head)} to the logit of "
        f"“{logit.word}”{first_token}, {source}; all {logit.n_heads} heads of cross-attention "
        f"together add {decimal(logit.of_all_heads)}. {_whole_logit(logit)}"
    )


def _whole_logit(logit: LogitFindings) -> str:
    """The whole logit that heads add to, and the largest of any other token."""
    likelier = ""
    if logit.n_likelier:
        tokens = "token is" if logit.n_likelier == 1 else "tokens are"
        likelier = f"; {logit.n_likelier} {tokens} likelier there"
    return (
        f"Against the mean of all tokens the whole logit is {decimal(logit.whole)}; that of "
        f"“{logit.rival}”, the likeliest other, is {decimal(logit.rival_logit)}{likelier}."
    )


def _mostly_from(write: HeadWrite) -> str:
    """From which source token most of ΔE comes."""
    largest = write.largest
    return _most_of(largest) or (
        f"the largest part, {percent(largest.fraction)}, from “{largest.piece}”"
    )


def _most_of(largest: LargestPart) -> str | None:
    """The largest part as a fraction of the sum, where that says something: not where parts of
    both signs are larger than their sum.
    """
    if not MOST_OF_IT <= largest.fraction <= ALL_OF_IT:
        return None
    return f"{percent(min(largest.fraction, 1.0))} of it from “{largest.piece}”"


def _travels(trace: CausalTrace) -> str:
    """Which token makes most of the difference, and from which layer on the word itself has it."""
    summary = trace.summary()
    alone = f"replacing only the vector of “{trace.word}” brings it"
    if summary.arrival_layer < summary.n_layers:
        is_last = summary.arrival_layer + 1 == summary.n_layers
        begins = f"From layer {summary.arrival_layer} on"
        if is_last:
            begins = f"Where it enters layer {summary.arrival_layer}, the last"
        arrives = f"{begins}, {alone} at least half of the way to this one."
    else:
        arrives = (
            f"Even where it enters the last layer, {alone} less than half of the way to this one."
        )
    return (
        "Now the other way round: the other sentence is changed. Putting "
        f"“{summary.token}” in the place of “{summary.second_token}” brings it "
        f"{percent(summary.fraction)} of the way to this sentence. {arrives}"
    )
