# %% [markdown]
# # A classifier that detects unknown classes
#
# `DissensusClassifier` takes any table of numbers: embeddings of a frozen model, or measurements. Here the table is
# scikit-learn's digits, scans of 8x8 pixels as 64 numbers. The digits 8 and 9 are left out of training.

# %%
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dissensus import DissensusClassifier

X, y = load_digits(return_X_y=True)
known = y < 8
X_train, X_test, y_train, y_test = train_test_split(X[known], y[known], test_size=0.3, random_state=0)
X_new = X[~known]

# %% [markdown]
# ## Fit and predict
# `fit` holds out a fifth of the training samples to set the threshold of `is_ood`. Samples like `X_new` are not needed.

# %%
classifier = DissensusClassifier(random_state=0).fit(X_train, y_train)
print(f"accuracy on known digits: {classifier.score(X_test, y_test):.3f}")
print(f"out, known digits: {classifier.is_ood(X_test).mean():.1%}")
print(f"out, new digits:   {classifier.is_ood(X_new).mean():.1%}")
assert classifier.threshold_ is not None
print(classifier.threshold_.promise)

# %% [markdown]
# ## How well does the score separate the two?
# `ood_score` is higher for samples that are more out of distribution; `score_samples` is its negative.

# %%
is_new = np.r_[np.zeros(len(X_test)), np.ones(len(X_new))]
score = classifier.ood_score(np.r_[X_test, X_new])
print(f"AUROC of new against known digits: {roc_auc_score(is_new, score):.3f}")

# %% [markdown]
# ## Abstain on uncertain samples
# Samples that are called out could go to a person; the others are more often classified correctly.

# %%
kept = ~classifier.is_ood(X_test)
print(f"accuracy on the {kept.mean():.0%} that are kept: {classifier.score(X_test[kept], y_test[kept]):.3f}")

# %% [markdown]
# ## Choose the diversity by cross-validation
# The estimator works in pipelines and searches. Without OOD data only the accuracy on ID data can be measured; among
# weights with about the same accuracy, a larger one makes members more diverse.

# %%
pipeline = make_pipeline(StandardScaler(), DissensusClassifier(members=3, epochs=20, random_state=0))
search = GridSearchCV(pipeline, {"dissensusclassifier__diversity": [0.0, 0.5]}, cv=2).fit(X_train, y_train)
for setting, accuracy in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
    print(f"diversity {setting['dissensusclassifier__diversity']}: accuracy {accuracy:.3f}")

# %% [markdown]
# ## Sample weights
# Weight 0 leaves a sample out. Here the digit 3 has weight 3.

# %%
weight = np.where(y_train == 3, 3.0, 1.0)
weighted = DissensusClassifier(random_state=0).fit(X_train, y_train, sample_weight=weight)
threes = y_test == 3
plain, heavy = (c.score(X_test[threes], y_test[threes]) for c in (classifier, weighted))
print(f"accuracy on threes: {plain:.3f}, and {heavy:.3f} with weight 3")
