"""Sentences: their files, the lexicon that ships with the library, and splits into folds.

files       rows of JSONL, CSV, TSV, Parquet and word folders, as a stream
sentences   a row as a checked sentence, and a file as a corpus
spans       the characters of a word in a text
cues        cues that are inferred from aligned pairs
cautions    warnings about sentences before a model reads them
lexicon     the words that ship (`lexicon/*.toml`, `lexicon/natural/*.toml`) and their sentences
slots       short texts with a slot for a cue
splits      which sentences are used for fitting and which for testing
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["lexicon"])
