# %% [markdown]
# # A stream that drifts
#
# A detector decides about one image; at a false-alarm rate of 5% it calls out one ID image in twenty for ever. A
# `Monitor` decides about a stream: is what comes in still what the detector was calibrated on? A stream that is ever
# raises its alarm with probability 1% at most, however long it is.

# %%
from dissensus import Detector, Monitor, batch_test, fit, new_ensemble, suites

suite = suites.load("digits", backbone="pixels")
ensemble = fit(new_ensemble(suite.train, members=5), suite.train, "deep-ensemble", epochs=20, lr=1e-2, batch_size=64)
detector = Detector(ensemble, suite.train.classes).calibrate(suite.held_out, false_alarms=0.05)
sets = {each.name: each.features for each in suite.sets}
print(detector)

# %% [markdown]
# ## The stream as it should be
# More of the digits that the detector was calibrated on.

# %%
monitor = Monitor(detector, rate=0.01)
for verdict in detector.stream(sets["id"]):
    monitor.add(verdict)
print(f"{len(sets['id'])} images, alarm: {monitor.alarm}")
monitor.save("watch.json")  # Monitor.load("watch.json", detector) continues

# %% [markdown]
# ## The camera gets noisy
# The same digits under the weakest gaussian noise, one image at a time.

# %%
for verdict in detector.stream(sets["gaussian-noise-1"]):
    if alarm := monitor.add(verdict):
        print(alarm)
print(monitor.banner)

# %% [markdown]
# ## Batches
# `batch_test` looks at the images of one batch: how many are out of distribution, at a share of false discoveries.

# %%
for name in ("id", "gaussian-noise-1", "photos"):
    print(f"{name}:", batch_test(detector.predict(sets[name]), detector.threshold))
