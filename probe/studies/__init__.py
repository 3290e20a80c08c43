"""The studies: choose words, measure, conclude, return.

study                about single words; cost: what it will take
survey, survey_word  about words in general; one word of a survey
workers              who measures the words of a survey: this process, or others
shortcuts            attention, classifiers and gradients next to the swaps of the same heads
mib                  circuits as scored edges, in the form of MIB's circuit track
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["mib"])
