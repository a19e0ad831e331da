"""A detector for your own images: folders in, verdicts out.

Run it as it is, on images that it makes of scikit-learn's handwritten digits, or give it a folder of class folders:

    python examples/own_images.py [PHOTOS]
"""

# %% Images: a folder with a folder for each class. Here, scans of 0 to 4; 5 to 9 will be news to the ensemble.
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from dissensus import Detector, Ensemble, ImageSet, backbones, extract, fit

work = Path(tempfile.mkdtemp(prefix="dissensus-example-"))
if len(sys.argv) > 1:
    photos, strange = Path(sys.argv[1]), []
else:
    photos, strange = work / "photos", []
    scans = load_digits()
    for i, (scan, digit) in enumerate(zip(scans.images[:800], scans.target[:800], strict=True)):
        folder = (photos if digit < 5 else work / "strange") / str(digit)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.rint(scan / 16 * 255).astype(np.uint8)).save(folder / f"{i:04d}.png")
    strange = sorted((work / "strange").rglob("*.png"))

# %% Three parts that share no image: to train on, to calibrate on, to see whether the promise is kept.
images = ImageSet.find(photos)
train, held_out, fresh = images.part(0, 0.6, seed=0), images.part(0.6, 0.8, seed=0), images.part(0.8, 1, seed=0)
print(f"{len(train)} images to train on, {len(held_out)} to calibrate on, {len(fresh)} to test; {images.classes}")

# %% The frozen trunk runs once. Its features are kept in a folder, so that the next training starts from there.
backbone = backbones.create("lite0", layers=1, size=64)
features = extract(train, backbone, work / "features")

# %% Five members that agree on what they know and differ where it is hard. `out` keeps the run.
ensemble = Ensemble(backbone.new_tail(len(images.classes)), members=5, seed=0)
fit(ensemble, features, "sed-a2d", diversity=0.03, label_smoothing=0.1, epochs=20, lr=2e-3, batch_size=64,
    out=work / "run")  # fmt: skip

# %% The threshold, from images that were not trained on. It is kept with the run.
detector = Detector.load(work / "run").calibrate(held_out, false_alarms=0.05)
detector.save(work / "run")
print(detector.threshold.promise)

# %% Verdicts: for images that it should know, and for those it should not.
found = detector.predict(fresh)
print(f"fresh images called out: {found.out.float().mean():.1%}")
print(found.frame().head(3).to_string(index=False))
if strange:
    news = detector.predict(strange)
    print(f"other digits called out: {news.out.float().mean():.1%}")
    print(next(v for v in news if v.out))

# %% From here the command line does as well: dissensus predict RUN IMAGES, dissensus serve RUN, dissensus export RUN.
print(f"the run is in {work / 'run'}")
