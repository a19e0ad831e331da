# %% [markdown]
# # A detector for your own images
#
# Class folders in, verdicts out. Here the images are scans of the digits 0 to 4, and the digits 5 to 9 are the unknown
# ones. For your own, set `photos` to a folder with a folder of images per class.

# %%
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from dissensus import Detector, Ensemble, ImageSet, backbones, extract, fit

os.chdir(tempfile.mkdtemp(prefix="dissensus-example-"))  # all files below go there
photos = Path("photos")
scans = load_digits()
for i, (scan, digit) in enumerate(zip(scans.images[:600], scans.target[:600], strict=True)):
    folder = (photos if digit < 5 else Path("unknown")) / str(digit)
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.rint(scan / 16 * 255).astype(np.uint8)).save(folder / f"{i:04d}.png")
unknown = sorted(Path("unknown").rglob("*.png"))

# %% [markdown]
# ## Split into three parts
# To train on, to calibrate on and to test on.

# %%
images = ImageSet.find(photos)
train, held_out, test = images.part(0, 0.6, seed=0), images.part(0.6, 0.8, seed=0), images.part(0.8, 1, seed=0)
print(f"{len(train)} images to train on, {len(held_out)} to calibrate on, {len(test)} to test on; {images.classes}")

# %% [markdown]
# ## Run the frozen trunk once
# The features stay in a folder, and further ensembles can be trained on them.

# %%
backbone = backbones.create("lite0", layers=1, size=64)
features = extract(train, backbone, "features", workers=0)  # no processes for a few small images
print(features)

# %% [markdown]
# ## Train
# Five members that agree on easy samples and disagree on hard ones. `out` is the run folder.

# %%
ensemble = Ensemble(backbone.new_tail(len(images.classes)), members=5, seed=0)
trained = fit(
    ensemble, features, "sed-a2d", diversity=0.03, label_smoothing=0.1, epochs=20, lr=2e-3, batch_size=64, out="run"
)

# %% [markdown]
# ## Calibrate
# On images that were not trained on. The threshold is saved in the run folder.

# %%
detector = Detector.load("run").calibrate(held_out, false_alarms=0.05)
detector.save("run")
print(detector)
assert detector.threshold is not None
print(detector.threshold.promise)

# %% [markdown]
# ## Predict
# Known classes first. On average over calibration sets at most one in twenty is called out; with sets as small as these
# it may be none, or one in ten.

# %%
known = detector.predict(test)
print(f"known digits called out: {known.out.float().mean():.1%} of {len(test)}")
print(known.frame().drop(columns=[f"member {m}" for m in range(1, 6)]).head(3).to_string(index=False))

# %% [markdown]
# Then the unknown ones. About half are missed: an 8x8 digit is much like another, and the trunk was trained on
# photographs. Nothing guarantees how many are found.

# %%
verdicts = detector.predict(unknown)
print(f"unknown digits called out: {verdicts.out.float().mean():.1%} of {len(unknown)}")
print(next(verdict for verdict in verdicts if verdict.out))

# %% [markdown]
# ## Look
# The scores of both, and the line above which an image is out.

# %%
line = float(known.threshold[0])
bins = np.linspace(0, float(verdicts.score.max()), 40)
_, ax = plt.subplots(figsize=(7, 2.6))
ax.hist(known.score.numpy(), bins, density=True, alpha=0.5, label="known digits")
ax.hist(verdicts.score.numpy(), bins, density=True, histtype="step", label="unknown digits")
ax.axvline(line, color="black", linestyle=":", label="5% line")
ax.set(xlabel="score", ylabel="density")
ax.legend()
plt.show()

# %% [markdown]
# The unknown digits with the highest and with the lowest scores, with the class that the ensemble gives them.

# %%
order = verdicts.score.argsort(descending=True).tolist()
_, axes = plt.subplots(2, 6, figsize=(7, 3.2), layout="constrained")
for ax, i in zip(axes.flat, order[:6] + order[-6:], strict=True):
    ax.imshow(Image.open(unknown[i]), cmap="gray")
    ax.set_title(f"as {verdicts[i].class_name}, p = {verdicts[i].p_value:.2g}", fontsize=8)
    ax.axis("off")
plt.show()

# %% [markdown]
# The command line takes the same folders: `dissensus predict RUN IMAGES`, `dissensus serve RUN`,
# `dissensus export RUN`.
