# %% [markdown]
# # Embeddings with scikit-learn
#
# `DissensusClassifier` takes any table of numbers: embeddings of a frozen model, or measurements. It is a scikit-learn
# classifier that also says which samples belong to none of its classes. Here the table has embeddings of scikit-learn's
# digits; yours may come from any model. The digits 8 and 9 are left out of training.

# %%
import tempfile

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import RocCurveDisplay, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dissensus import DissensusClassifier, ImageSet, backbones, extract

digits = load_digits()
pixels = np.rint(digits.images[:700] / 16 * 255).astype(np.uint8)[..., None].repeat(3, axis=-1)  # RGB
pixels = np.concatenate([pixels, 255 - pixels[:100]])  # and a hundred in the colours of a negative
backbone = backbones.create("lite0", layers=1, size=64)
embeddings = extract(ImageSet.from_arrays(pixels), backbone, tempfile.mkdtemp(), workers=0)
X, X_negative = np.split(np.asarray(embeddings.rows(slice(None)), np.float32), [700])
y = digits.target[:700]
known = y < 8
X_train, X_test, y_train, y_test = train_test_split(X[known], y[known], test_size=0.3, random_state=0)
X_new = X[~known]
print(f"{X_train.shape} to train on, {X_test.shape} to test on, {X_new.shape} of unknown digits")

# %% [markdown]
# ## Fit and predict
# `fit` holds out a fifth of the training samples to set the threshold of `is_ood`. Samples like `X_new` are not needed.

# %%
classifier = DissensusClassifier(random_state=0).fit(X_train, y_train)
print(f"accuracy on known digits: {classifier.score(X_test, y_test):.3f}")
for name, samples in {"known digits": X_test, "new digits": X_new, "negatives": X_negative}.items():
    print(f"out, {name}: {classifier.is_ood(samples).mean():.1%}")
assert classifier.threshold_ is not None
print(classifier.threshold_.promise)

# %% [markdown]
# ## Compared with what scikit-learn has
# `ood_score` is higher for samples that are more out of distribution. Beside it: how unsure a logistic regression is,
# and how isolated a sample is among the training samples.

# %%
regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(X_train, y_train)
outliers = LocalOutlierFactor(novelty=True).fit(X_train)
scores = {
    "DissensusClassifier": classifier.ood_score,
    "1 - confidence": lambda rows: 1 - regression.predict_proba(rows).max(axis=1),
    "LocalOutlierFactor": lambda rows: -outliers.score_samples(rows),
}
_, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for ax, (kind, samples) in zip(axes, {"new digits": X_new, "negatives": X_negative}.items(), strict=True):
    both, is_new = np.r_[X_test, samples], np.r_[np.zeros(len(X_test)), np.ones(len(samples))]
    for name, score in scores.items():
        print(f"{kind}, {name}: AUROC {roc_auc_score(is_new, score(both)):.3f}")
        RocCurveDisplay.from_predictions(is_new, score(both), name=name, ax=ax)
    ax.set(title=kind, xlabel="known digits called out", ylabel=f"{kind} called out")
plt.show()

# %% [markdown]
# The confidence of a classifier does not see the negatives. The outlier factor does, but is the worst on new digits.
# The default score combines distance and confidence: it is good at both, and not always the best.

# %% [markdown]
# ## Abstain on uncertain samples
# Samples that are called out could go to a person.

# %%
kept = ~classifier.is_ood(X_test)
print(f"accuracy on all: {classifier.score(X_test, y_test):.3f}")
print(f"accuracy on the {kept.mean():.0%} that are kept: {classifier.score(X_test[kept], y_test[kept]):.3f}")

# %% [markdown]
# The estimator works in pipelines, searches and cross-validation like any other: see
# `docs/estimator.md`.
