"""A score of your own, beside those built in: in tables, in detectors, by name."""

# %% A function of the members' logits (M, B, C) that gives a number for each sample, higher = more OOD.
from torch import Tensor

from dissensus import Detector, Ensemble, evaluate, fit, suites
from dissensus.functional import scores
from dissensus.models import tails


@scores.register
def loneliest(logits: Tensor) -> Tensor:
    """How far the member that differs most is from the mean prediction: the largest total variation."""
    probs = logits.softmax(-1)
    return (probs - probs.mean(0)).abs().sum(-1).amax(0) / 2


# %% An ensemble to try it on; digits by their pixels, which need no trunk.
suite = suites.load("digits", backbone="pixels")
ensemble = Ensemble(tails.create("linear", suite.train.width, len(suite.train.classes)), members=5, seed=0)
fit(ensemble, suite.train, "sed-a2d", diversity=0.1, label_smoothing=0.1, epochs=20, lr=1e-2, batch_size=64)

# %% It takes part in every evaluation.
frame = evaluate(ensemble, suite.sets, score_names=["loneliest", "pds", "bma", "mutual_information"], progress=False)
table = frame[frame["metric"] == "auroc"].pivot_table(index="score", columns="dataset", values="value")
print(table[["gaussian-noise-5", "new-digits", "photos"]].round(3).to_string())

# %% And it can decide: alone, or together with others as p-values.
for score in ("loneliest", ["loneliest", "average_energy"]):
    detector = Detector(ensemble, suite.train.classes).calibrate(suite.held_out, false_alarms=0.05, score=score)
    caught = {s.name: float(detector.predict(s.features).out.float().mean()) for s in suite.sets if s.role != "shift"}
    print(detector.score_name, {name: f"{share:.1%}" for name, share in caught.items()})
