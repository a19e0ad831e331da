# %% [markdown]
# # A Hugging Face data set
#
# `ImageSet.from_dataset` takes a data set of the `datasets` library with a column of images and a column of labels.
# Here two are built in memory from scikit-learn's digits: 0 to 4 are the known classes, 5 to 9 the unknown ones. With
# `datasets.load_dataset("NAME", split="train")` they come from the hub.

# %%
import os
import tempfile

import matplotlib.pyplot as plt
import numpy as np
from datasets import ClassLabel, Dataset, Features, Image
from sklearn.datasets import load_digits

from dissensus import Detector, ImageSet, backbones, extract, fit, new_ensemble

os.chdir(tempfile.mkdtemp(prefix="dissensus-example-"))  # all files below go there
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
features = extract(train, backbone, "features", workers=0)
options = {"label_smoothing": 0.1, "epochs": 20, "lr": 2e-3, "batch_size": 64}
ensemble = fit(new_ensemble(features, members=5), features, "sed-a2d", out="run", **options)
detector = Detector.load("run").calibrate(held_out, false_alarms=0.05)
print(detector)

# %% [markdown]
# ## Verdicts as a column
# `add_column` keeps them with the images. About a third of the unknown digits are called out; the others look too much
# like the known ones to a trunk that was trained on photographs.

# %%
verdicts = detector.predict(test)
print(f"known digits called out: {verdicts.out.float().mean():.1%} of {len(test)}")
verdicts = detector.predict(ImageSet.from_dataset(unknown))
predicted = unknown.add_column("p_value", [verdict.p_value for verdict in verdicts])
out = predicted.filter(lambda p_value: p_value <= 0.05, input_columns="p_value")
print(f"unknown digits called out: {len(out) / len(unknown):.1%} of {len(unknown)}")

# %%
_, axes = plt.subplots(1, 8, figsize=(7, 1.3), layout="constrained")
for ax, row in zip(axes, predicted.select(range(8)), strict=True):
    ax.imshow(row["image"], cmap="gray")
    ax.set_title("out" if row["p_value"] <= 0.05 else f"p = {row['p_value']:.2f}", fontsize=8)
    ax.axis("off")
plt.show()

# %% [markdown]
# A detector on the [hub](https://huggingface.co/docs/hub) loads with `Detector.from_pretrained("OWNER/NAME")`.
