# %% [markdown]
# # A Hugging Face data set
#
# `ImageSet.from_dataset` takes a data set of the `datasets` library with a column of images and a column of labels.
# Here two are built in memory from scikit-learn's digits: 0 to 4 are the known classes, 5 to 9 the unknown ones. With
# `datasets.load_dataset("NAME", split="train")` they come from the hub.

# %%
import tempfile
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image
from sklearn.datasets import load_digits

from dissensus import Detector, ImageSet, backbones, extract, fit, new_ensemble

work = Path(tempfile.mkdtemp(prefix="dissensus-example-"))
digits = load_digits()
pixels, labels = np.rint(digits.images[:700] / 16 * 255).astype(np.uint8), digits.target[:700]
labelled = Features({"image": Image(), "label": ClassLabel(names=[str(digit) for digit in range(5)])})
known = Dataset.from_dict({"image": list(pixels[labels < 5]), "label": labels[labels < 5]}, features=labelled)
unknown = Dataset.from_dict({"image": list(pixels[labels >= 5])}, features=Features({"image": Image()}))
print(known)

# %% [markdown]
# ## Split
# To train on, to calibrate on and to test on.

# %%
images = ImageSet.from_dataset(known)
train, held_out, test = images.part(0, 0.6, seed=0), images.part(0.6, 0.8, seed=0), images.part(0.8, 1, seed=0)
print(f"{len(train)} images to train on; classes {images.classes}")

# %% [markdown]
# ## Features, members, threshold
# As for images in folders.

# %%
backbone = backbones.create("lite0", layers=1, size=64)
features = extract(train, backbone, work / "features", workers=0)
options = {"label_smoothing": 0.1, "epochs": 20, "lr": 2e-3, "batch_size": 64}
ensemble = fit(new_ensemble(features, members=5), features, "sed-a2d", out=work / "run", **options)
detector = Detector.load(work / "run").calibrate(held_out, false_alarms=0.05)
print(detector)

# %% [markdown]
# ## Verdicts as a column
# `add_column` keeps them with the images.

# %%
print(f"known digits called out: {detector.predict(test).out.float().mean():.1%}")
verdicts = detector.predict(ImageSet.from_dataset(unknown))
predicted = unknown.add_column("p_value", [verdict.p_value for verdict in verdicts])
out = predicted.filter(lambda p_value: p_value <= 0.05, input_columns="p_value")
print(f"unknown digits called out: {len(out) / len(unknown):.1%}")
print(out)
