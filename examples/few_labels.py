# %% [markdown]
# # A few labels find the member that holds elsewhere
#
# In training a cue is tied to the label: every 7 stands under a 0, every 9 under a 1. The upper digit is easier to
# read, so a model may look at it alone, and fails where the tie does not hold. Members that disagree on unlabelled
# images of the new place do not all take the cue, and a handful of labels shows which of them is right there.

# %%
import matplotlib.pyplot as plt
import numpy as np

from dissensus import Ensemble, FeatureSet, adapt, ask, fit, new_ensemble, suites

suite = suites.load("dominoes", seed=0)
pool, answers = suite.pool, suite.labels  # images of the new place; their labels, which a user would know if asked
assert pool is not None
assert answers is not None
groups = next(each.features for each in suite.sets if each.name == "groups")
print(suite.summary)
print(f"{len(suite.train)} labelled images to train on, {len(pool)} unlabelled ones of the new place")


def show(features: FeatureSet, rows: list[int], titles: list[str]) -> None:
    """Draw images: an upper and a lower digit of 8x8 pixels each."""
    _, axes = plt.subplots(1, len(rows), figsize=(7, 1.9), layout="constrained")
    for ax, row, title in zip(axes, rows, titles, strict=True):
        ax.imshow(np.asarray(features.rows([row])).reshape(16, 8), cmap="gray")
        ax.set_title(title, fontsize=8)
        ax.axis("off")
    plt.show()


def worst_group(ensemble: Ensemble, features: FeatureSet = groups) -> float:
    """Return the accuracy in the worst of four groups: 7 and 9, under 0 and 1."""
    right = ensemble(features.rows(slice(None))).mean(0).argmax(1).numpy() == np.asarray(features.labels)
    return min(float(right[features.groups == group].mean()) for group in range(4))


show(suite.train, list(range(8)), [f"train: {suite.train.classes[label]}" for label in suite.train.labels[:8]])

# %% [markdown]
# ## Train
# A deep ensemble, and an ensemble whose members disagree on the unlabelled images (A2D).

# %%
options = {"label_smoothing": 0.1, "member_epochs": 40, "lr": 1e-3, "batch_size": 64}
deep = fit(new_ensemble(suite.train, members=4, tail="mlp"), suite.train, "deep-ensemble", **options)
diverse = new_ensemble(suite.train, members=4, tail="mlp")
diverse = fit(diverse, suite.train, "a2d", disagreement=pool, diversity=1.0, **options)
print(f"worst group: deep ensemble {worst_group(deep):.2f}, a2d {worst_group(diverse):.2f}")

# %% [markdown]
# ## Ask
# Which eight images of the new place should be labelled? Those about which members differ: here, for the most part,
# images whose upper digit says one thing and whose lower digit another.

# %%
questions = ask(diverse, pool, count=8, classes=suite.train.classes)
print(questions)
labelled = answers.subset(questions.rows)
show(labelled, list(range(8)), [f"answer: {answers.classes[label]}" for label in labelled.labels])

# %% [markdown]
# ## Adapt
# The labels choose among the members. `reason` says why, and `table` how many of the labels each way gets right.

# %%
adapted = adapt(diverse, labelled)
print(adapted.table, adapted.reason, sep="\n\n")
print(f"\nworst group with 8 labels: {worst_group(adapted.ensemble):.2f}")

# %% [markdown]
# ## And the deep ensemble?
# It may ask its own eight questions. They help it less: all its members read the upper digit, so none of them is the
# right one to choose, and a new last layer has only what they kept of the lower digit. These are figures of one seed;
# the guide to `adapt` has those of several.

# %%
deep_adapted = adapt(deep, answers.subset(ask(deep, pool, count=8).rows))
figures = {
    "deep ensemble": worst_group(deep),
    "deep ensemble, 8 labels": worst_group(deep_adapted.ensemble),
    "a2d": worst_group(diverse),
    "a2d, 8 labels": worst_group(adapted.ensemble),
}
_, ax = plt.subplots(figsize=(7, 2.2), layout="constrained")
ax.bar_label(ax.barh(list(figures), list(figures.values())), fmt="%.2f", padding=3)
ax.set(xlabel="accuracy in the worst group", xlim=(0, 1.1))
ax.invert_yaxis()
plt.show()
