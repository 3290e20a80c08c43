"""What is read: sentences and their files, the lexicon that ships, how sentences are split.

files       rows of JSONL, CSV, TSV, Parquet and word folders, streamed
sentences   a row as a checked sentence, a file as a corpus
convert     public data sets as sentences
cautions    what to know of sentences before a model reads them
lexicon     the words that ship (`lexicon/*.toml`, `lexicon/natural/*.toml`) and the sentences made
            of them
splits      fit, select and report; folds; parts of a corpus that is never held
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["lexicon"])
