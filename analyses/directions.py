# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Does a direction mean something?
#
# "king - man + woman": is there a direction from the masculine word to the feminine one among the token vectors? The mean difference of
# all pairs but one is added to the masculine word of the pair left out, and all tokens are ranked by their cosine with the sum. Expect the
# feminine word to be nearer than with no step, with a random step, or with a step of the same differences with random signs, but not to be
# first every time. A few seconds.
#
# Needs: a clone of the repository, for `drawing` next to this script; a model: the one that ships, or any that `PROBE_MODEL` names. Writes
# into `reports/lessons` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: The rank of the feminine word after the direction of all other pairs is added to the masculine word.

# %%
import os
from pathlib import Path

import drawing
import numpy as np
import pandas as pd
import torch
from torch.nn.functional import normalize

import probe
from probe import charts
from probe.stats.resampling import sign_flip_test

model = probe.load(os.environ.get("PROBE_MODEL", "tiny-senses"))
out = Path(os.environ.get("PROBE_OUT", "reports/lessons"))
DRAWS = 200
PAIRS = (
    "king queen, man woman, actor actress, prince princess, father mother, son daughter, brother sister, uncle aunt, husband wife, "
    "nephew niece, boy girl, gentleman lady, hero heroine, wizard witch, landlord landlady, steward stewardess, host hostess, "
    "policeman policewoman, businessman businesswoman, duke duchess, emperor empress, grandson granddaughter, heir heiress, "
    "widower widow, god goddess, waiter waitress, grandfather grandmother, monk nun, salesman saleswoman"
)
MEN = "Adam Ben David Eric Frank George Henry Jack Kevin Paul Robert Simon Thomas"
WOMEN = "Alice Anna Beth Clara Emma Grace Helen Julia Karen Laura Maria Rachel Sarah"

# %% [markdown]
# ## The pairs
#
# Only words that are one token in this model can be used. The mean of the normalised differences has a length of about 1 / sqrt(pairs) if
# they are unrelated, and 1 if they are all the same.

# %%
table = model.weights["wte.weight"].double()


def ids_of(text: str) -> list[int]:
    """The tokens of the words of a text that are one token each, with their leading space."""
    ids_by_word = [
        model.tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in text.split()
    ]
    return [ids[0] for ids in ids_by_word if len(ids) == 1]


pairs = {pair: ids_of(pair) for pair in PAIRS.split(", ") if len(ids_of(pair)) == 2}
differences = torch.stack(
    [table[feminine] - table[masculine] for masculine, feminine in pairs.values()]
)
len(pairs), normalize(differences, dim=-1).mean(0).norm().item(), len(pairs) ** -0.5

# %% [markdown]
# ## Rank of the feminine word, held out
#
# Ranked among all tokens except the masculine word. All steps have the length of the direction. `random` and `signs_drawn` are geometric
# means over the draws.


# %%
def rank(pair: list[int], steps: torch.Tensor) -> float:
    """The rank of the second word after a step from the first, 1 is nearest; geometric mean over `step d_model`."""
    cosines = normalize(table[pair[0]] + steps, dim=-1) @ normalize(table, dim=-1).T
    cosines[:, pair[0]] = -torch.inf
    return (1 + (cosines > cosines[:, [pair[1]]]).sum(-1)).double().log().mean().exp().item()


generator = torch.Generator().manual_seed(0)
rows = []
for number, (name, pair) in enumerate(pairs.items()):
    training = differences[[index for index in range(len(pairs)) if index != number]]
    step = training.mean(0)
    noise = torch.randn(DRAWS, len(step), generator=generator, dtype=torch.double)
    signs = torch.randint(2, (DRAWS, len(training)), generator=generator).double() * 2 - 1
    steps = {"direction": step[None], "signs_drawn": signs @ training, "random": noise}
    by_kind = {
        kind: rank(pair, normalize(each, dim=-1) * step.norm()) for kind, each in steps.items()
    }
    near = probe.decomposition.nearest_tokens(
        model, table[pair[0]] + step, count=3, without=pair[:1]
    )
    nearest = " · ".join(model.tokenizer.decode([token]).strip() for token, _ in near)
    rows.append(
        {
            "pair": name.replace(" ", " → "),
            **by_kind,
            "no_step": rank(pair, 0 * step[None]),
            "nearest": nearest,
        }
    )
ranks = pd.DataFrame(rows)
ranks

# %% [markdown]
# ## How certain?
#
# The gain of a pair is log(the better rank of the two controls / the rank of the direction). If the direction were no better, the sign of
# each gain would be a coin flip. (The directions of two pairs share most of their differences, so pairs are not quite independent.)

# %%
gains = np.log(ranks[["signs_drawn", "random"]].min(axis=1) / ranks["direction"]).to_numpy()
p = sign_flip_test(gains[:, None], ranks["pair"], seed=0, draws=2000).p[0]
means = np.exp(np.log(ranks[["direction", "signs_drawn", "random", "no_step"]]).mean())
means, f"{(gains > 0).sum()} of {len(gains)} pairs are nearer than with either control, p = {p:.2g}"

# %% [markdown]
# ## Words of another kind
#
# The same direction tested on names: are the names of women further along it than the names of men? AUROC, where 0.5 is chance. The direction
# also holds for names if the AUROC is outside the middle 95 % of directions with random signs.

# %%
signs = torch.randint(2, (DRAWS, len(differences)), generator=generator).double() * 2 - 1
along = torch.cat([differences.mean(0)[None], signs @ differences])
women, men = (table[ids_of(text)] @ along.T for text in (WOMEN, MEN))
auroc = (women[:, None] > men).double().mean((0, 1))
auroc[0].item(), np.quantile(auroc[1:].numpy(), [0.025, 0.975])

# %% [markdown]
# ## The table and the picture
#
# The last row of the table has the AUROC of the names. In the picture, a circle to the left of both controls is a gain.

# %%
names = {
    "pair": "AUROC, names of women above men's",
    "direction": auroc[0].item(),
    "signs_drawn": auroc[1:].mean().item(),
}
out.mkdir(parents=True, exist_ok=True)
pd.concat([ranks, pd.DataFrame([names])]).to_csv(
    out / "directions.csv", index=False, float_format="%.6g"
)
labels = {
    "direction": "the direction of the other pairs",
    "signs_drawn": "the same differences, signs drawn",
    "random": "a random direction",
}
long = ranks.rename(columns={"pair": "row", **labels}).melt(
    id_vars="row", value_vars=[*labels.values()], var_name="what"
)
picture = drawing.compared(long, "rank of the feminine word among all tokens", kind="rank")
charts.save(picture, out / "directions.png")
picture
