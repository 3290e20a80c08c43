"""What can be said about a word's sense without a model: the most frequent sense, and the words of the sentence.

The bag of the words to the left is what a causal model has read when it reaches the word, without their order and without
anything learned elsewhere; a model that does not beat it has not been shown to know more than which words stand there.
The word itself is in no bag. The classifier is a logistic regression on TF-IDF with balanced classes, which on CoarseWSD-20
was the strongest of the plain ones (the bar should be high); nothing in it is random.
"""

import re
from collections.abc import Sequence

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from probe.evaluation.centroids import Labels, by_frequency
from probe.evaluation.holdouts import Holdout
from probe.lexicon import Sentence

INVERSE_PENALTY = 10.0
STEPS = 2000
Bag = tuple[str, ...]


def whole_bag(sentence: Sentence) -> Bag:
    """The other words of the sentence, case folded; further mentions of the word are left out too."""
    return _words(f"{sentence.text[: sentence.start]} {sentence.text[sentence.end :]}", sentence.word)


def left_bag(sentence: Sentence) -> Bag:
    """The words before the word, case folded."""
    return _words(sentence.text[: sentence.start], sentence.word)


def _words(text: str, word: str) -> Bag:
    return tuple(found for found in re.findall(r"\w+", text.casefold()) if found != word.casefold())


def most_frequent(labels: Labels, count: int) -> Labels:
    """The most frequent sense of the training labels, `count` times."""
    return np.repeat(by_frequency(labels)[:1], count)


def predict(bags: Sequence[Bag], labels: Labels, holdout: Holdout) -> Labels:
    """The sense of each tested bag by a classifier of the training bags; a bag without a known word gets the most frequent."""
    train, test = ([bags[row] for row in rows] for rows in (holdout.train, holdout.test))
    learned = labels[list(holdout.train)]
    senses, answer = by_frequency(learned), most_frequent(learned, len(test))
    known = {word for bag in train for word in bag}
    rows = [row for row, bag in enumerate(test) if known.intersection(bag)]
    if not rows:
        return answer
    vectorizer = TfidfVectorizer(analyzer=tuple, sublinear_tf=True)
    classifier = LogisticRegression(C=INVERSE_PENALTY, class_weight="balanced", max_iter=STEPS)
    # Numbered by frequency, so that a tie goes to the more frequent sense.
    classifier.fit(vectorizer.fit_transform(train), [list(senses).index(label) for label in learned])
    answer[rows] = senses[classifier.predict(vectorizer.transform([test[row] for row in rows]))]
    return answer
