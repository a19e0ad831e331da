# %% [markdown]
# # A detector for your own images
#
# Class folders in, verdicts out. Here the images are scans of the digits 0 to 4, and the digits 5 to 9 are the unknown
# ones. For your own, set `photos` to a folder with a folder of images per class.

# %%
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from dissensus import Detector, Ensemble, ImageSet, backbones, extract, fit

work = Path(tempfile.mkdtemp(prefix="dissensus-example-"))
photos = work / "photos"
scans = load_digits()
for i, (scan, digit) in enumerate(zip(scans.images[:800], scans.target[:800], strict=True)):
    folder = (photos if digit < 5 else work / "unknown") / str(digit)
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.rint(scan / 16 * 255).astype(np.uint8)).save(folder / f"{i:04d}.png")
unknown = sorted((work / "unknown").rglob("*.png"))

# %% [markdown]
# ## Split into three parts
# To train on, to calibrate on and to test on.

# %%
images = ImageSet.find(photos)
train, held_out, test = images.part(0, 0.6, seed=0), images.part(0.6, 0.8, seed=0), images.part(0.8, 1, seed=0)
print(f"{len(train)} images to train on, {len(held_out)} to calibrate on, {len(test)} to test on; {images.classes}")

# %% [markdown]
# ## Run the frozen trunk once
# The features stay in a folder, and can be used for other trainings.

# %%
backbone = backbones.create("lite0", layers=1, size=64)
features = extract(train, backbone, work / "features")
print(features)

# %% [markdown]
# ## Train
# Five members that agree on easy samples and disagree on hard ones. `out` is the run folder.

# %%
ensemble = Ensemble(backbone.new_tail(len(images.classes)), members=5, seed=0)
trained = fit(
    ensemble, features, "sed-a2d", diversity=0.03, label_smoothing=0.1, epochs=20, lr=2e-3, batch_size=64,
    out=work / "run",
)  # fmt: skip

# %% [markdown]
# ## Calibrate
# On images that were not trained on. The threshold is saved in the run folder.

# %%
detector = Detector.load(work / "run").calibrate(held_out, false_alarms=0.05)
detector.save(work / "run")
print(detector)

# %% [markdown]
# ## Predict
# Known classes first, then unknown ones.

# %%
verdicts = detector.predict(test)
print(f"known digits called out: {verdicts.out.float().mean():.1%}")
print(verdicts.frame().head(3).to_string(index=False))

# %%
verdicts = detector.predict(unknown)
print(f"unknown digits called out: {verdicts.out.float().mean():.1%}")
print(next(verdict for verdict in verdicts if verdict.out))

# %% [markdown]
# The command line takes the same folders: `dissensus predict RUN IMAGES`, `dissensus serve RUN`,
# `dissensus export RUN`.
