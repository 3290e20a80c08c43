"""A user's script with every public name: `make check` checks its types, and that a misspelt table
is an error. It is not run."""

import pandas as pd
from inside import (
    Certificate,
    Cues,
    Evaluation,
    Survey,
    TargetText,
    bootstrap_t,
    count_parameters,
    ratio_interval,
    read_weights,
    sign_flip_test,
    swap_heads,
    swap_pairs,
    swap_sets,
    target_states,
    trace_positions,
)

import probe
from probe import Model, Study, Trace, Walk

RIVER, LOAN = "The river bank", "The mortgage bank"
names = [packaged.name for packaged in probe.available()]
model: Model = probe.load("tiny-senses")
certificate: Certificate = probe.certify(model).require()
size = count_parameters(model).total
tokens = probe.tokenize(model, RIVER)
chat = probe.trace(model, probe.prompt(model, "the bank<|endoftext|>"))
weights = read_weights(model)
trace: Trace = probe.trace(model, RIVER)
states = target_states(model, [tokens], [3])
row, donor = TargetText(tokens.ids, 3), TargetText(probe.tokenize(model, LOAN).ids, 3)
line = probe.decomposition.residual_stream(trace, "bank")
way = (line[-1] - line[0])[None]
effects = swap_heads(model, [row], states.z, way)
both = swap_pairs(model, [row], [donor], way[None], depth=4)
set_effects = swap_sets(model, [row], states.z, states.z[:1, :, :, 0] > 0, way)
where = trace_positions(model, [row], [donor], way, depth=4)
edge_effects = probe.edges(model, [row], [donor], way, depth=4)
crossing = probe.cross.direct_logits
mine = probe.read_sentences("mine.csv")
study: Study = probe.study(model, "bank", sentences=mine)
study.charts.heads("bank").save("heads.html")
probe.charts.save(probe.charts.head_map(study.word_heads, "bank"), "bank.svg")
study.wrods.head()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
survey: Survey = probe.survey(model, sentences=probe.lexicon.expand("bank"))
evaluation: Evaluation = probe.evaluate(model, sentences=mine)
table = probe.decompose(model, RIVER, at="bank", tokens=" and").nlargest(3, "contribution")
added = probe.delta_e(model, RIVER, at="bank")
in_general = probe.profiles(model).nlargest(3, "previous")
scores = probe.qk_attribution(model, RIVER, layer=0, head=1, at="bank", source=1)
checked = probe.qk_interventions(model, RIVER, layer=0, head=1, at="bank", source=1)
writes = probe.ov_attribution(model, RIVER, layer=0, head=1, at="bank", source=1, along=" and")
swaps = probe.patch(model, RIVER, against=LOAN, at="bank")
hooks = probe.patch_hooks(model, RIVER, against=LOAN, at="bank", heads=[(0, 1)])
p = sign_flip_test(swaps[["swap"]].to_numpy(), swaps["head"].tolist()).p
losses = bootstrap_t(swaps[["swap"]].to_numpy(), [swaps["head"].tolist()]).p
ratio = ratio_interval(swaps["swap"].to_numpy(), swaps["gap"].to_numpy(), [swaps["head"].tolist()])
walk: Walk = probe.walk(model, RIVER, at="bank")
lengths = probe.delta_e(model, RIVER, at="bank")
page = probe.write(walk, "out")
page = probe.write(lengths, "out")
scan: Cues = probe.cues(model, "bank", texts=(RIVER, LOAN))
again: Study | Survey | Cues | Walk | Evaluation | pd.DataFrame = probe.read("out")
shown: str = probe.explore(model, RIVER, against=LOAN, at="bank").html
try:
    probe.load("tiny-sense")
except (probe.ModelError, probe.UnsupportedModel, probe.InputError) as error:
    print(error)
except (probe.CrossCheckError, probe.ProbeError) as error:
    print(error, probe.__version__)
