# %% [markdown]
# # A score of your own
#
# A score is a function of the members' logits (M, B, C) that returns one value per sample (B,), higher = more out of
# distribution. Once it is registered, it appears in tables and detectors beside the built-in ones.

# %%
from torch import Tensor

from dissensus import Detector, Ensemble, evaluate, fit, scores, suites, tails


@scores.register
def farthest(logits: Tensor) -> Tensor:
    """Total variation distance between the mean prediction and the member farthest from it."""
    probs = logits.softmax(-1)
    return (probs - probs.mean(0)).abs().sum(-1).amax(0) / 2


# %% [markdown]
# ## Train an ensemble to try it on
# The pixels of the digits need no backbone.

# %%
suite = suites.load("digits", backbone="pixels")
ensemble = Ensemble(tails.create("linear", suite.train.width, len(suite.train.classes)), members=5, seed=0)
trained = fit(ensemble, suite.train, "sed-a2d", diversity=0.1, label_smoothing=0.1, epochs=20, lr=1e-2, batch_size=64)

# %% [markdown]
# ## Every evaluation includes it

# %%
frame = evaluate(ensemble, suite.sets, score_names=["farthest", "pds", "bma", "mutual_information"], progress=False)
table = frame[frame["metric"] == "auroc"].pivot_table(index="score", columns="dataset", values="value")
print(table[["gaussian-noise-5", "new-digits", "photos"]].round(3).to_string())

# %% [markdown]
# ## A detector can use it
# Alone, or combined with other scores.

# %%
for score in ("farthest", ["farthest", "average_energy"]):
    detector = Detector(ensemble, suite.train.classes).calibrate(suite.held_out, false_alarms=0.05, score=score)
    detected = {s.name: float(detector.predict(s.features).out.float().mean()) for s in suite.sets if s.role != "shift"}
    print(detector.score_name, {name: f"{share:.1%}" for name, share in detected.items()})
