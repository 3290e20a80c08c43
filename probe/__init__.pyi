# The public names, each once, in pipeline order; `probe/__init__.py` imports each from here when it is first asked for.
from .model.load import load as load, available as available
from .model.model import Model as Model
from .model.tokens import tokenize as tokenize, positions_of_word as positions_of_word
from .model.trace import trace as trace, target_states as target_states, trace_target as trace_target
from .model.lens import residual_stream as residual_stream, logit_lens as logit_lens, nearest_tokens as nearest_tokens
from .model.check import certify as certify
from .model.parameters import count_parameters as count_parameters
from .text.lexicon import words as words, entry as entry, expand as expand, showcase as showcase
from .text.sentences import read_sentences as read_sentences
from .model.weights import read_weights as read_weights
from .patching.swaps import swap_heads as swap_heads, swap_pairs as swap_pairs, swap_sets as swap_sets
from .patching.cross import WordChoice as WordChoice, swap_cross_heads as swap_cross_heads
from .patching.cross import swap_source_words as swap_source_words, cross_logits as cross_logits
from .stats.permutation import sign_flip_test as sign_flip_test
from .study.study import study as study
from .pages.report import write_report as write_report
from .study.evaluation import evaluate as evaluate
from .pages.folder import write_evaluation as write_evaluation
from .pages.walk import walk as walk, write_walk as write_walk
from .errors import ProbeError as ProbeError, InputError as InputError, ModelError as ModelError
from .errors import UnsupportedModel as UnsupportedModel, CrossCheckError as CrossCheckError

__version__: str
