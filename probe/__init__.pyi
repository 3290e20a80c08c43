# The public names, each once, in pipeline order; `probe/__init__.py` imports each from here when it
# is first asked for.
# Four of them are modules, whose own names stand in their `__all__`, or in a file like this one.
from .model.load import load as load
from .model.find import available as available
from .model.model import Model as Model
from .model.check import certify as certify
from .model.tokens import prompt as prompt
from .model.tokens import tokenize as tokenize
from .model.trace import trace as trace
from .model.records import Trace as Trace
from .model import decomposition as decomposition
from .patching.edges import edges as edges
from .patching import cross as cross
from .text.sentences import read_sentences as read_sentences
from .text import lexicon as lexicon
from . import charts as charts
from .studies.study import study as study
from .studies.study import Study as Study
from .studies.survey import survey as survey
from .studies.evaluation import evaluate as evaluate
from .studies.cues import cues as cues
from .studies.delta_e import delta_e as delta_e
from .studies.decompose import decompose as decompose
from .experiments.profiles import profiles as profiles
from .studies.attribution import qk_attribution as qk_attribution
from .studies.attribution import qk_interventions as qk_interventions
from .studies.attribution import ov_attribution as ov_attribution
from .studies.patch import patch as patch
from .studies.patch import patch_hooks as patch_hooks
from .walks.walk import walk as walk
from .walks.walk import Walk as Walk
from .pages.write import write as write
from .pages.read import read as read
from .walks.explore import explore as explore
from .errors import ProbeError as ProbeError
from .errors import InputError as InputError
from .errors import ModelError as ModelError
from .errors import UnsupportedModel as UnsupportedModel
from .errors import CrossCheckError as CrossCheckError

__version__: str
