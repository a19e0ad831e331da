# %% [markdown]
# # A stream that drifts
#
# A detector decides about one image: at a false-alarm rate of 5% it calls out one ID image in twenty, for as long as it
# runs. A `Monitor` decides about a stream: is what comes in still what the detector was calibrated on? As long as it
# is, the probability that the alarm is ever raised is at most 1%, however long the stream.

# %%
import matplotlib.pyplot as plt
import numpy as np

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
before = monitor.samples
print(f"{before} images, {monitor.out} called out, alarm: {monitor.alarm}")
monitor.save("watch.json")  # Monitor.load("watch.json", detector) continues

# %% [markdown]
# ## The camera gets noisy
# The same digits under the weakest gaussian noise, one image at a time.

# %%
for verdict in detector.stream(sets["gaussian-noise-1"]):
    if alarm := monitor.add(verdict):
        print(alarm)

# %% [markdown]
# The monitor bets against the hypothesis that nothing has changed, and raises the alarm when its wealth reaches the
# limit. Before the drift it wins nothing; from then on the wealth grows with almost every image.

# %%
samples = [point.samples for point in monitor.history]
wealth = np.array([point.log_wealth for point in monitor.history]) / np.log(10)
_, ax = plt.subplots(figsize=(7, 2.8))
ax.plot(samples, wealth, label=list(monitor.tests))
ax.axhline(monitor.metrics()["log10_wealth_limit"], color="black", linestyle=":", label="limit")
ax.axvline(before, color="grey", linewidth=0.8, label="noise begins")
ax.set(xlabel="images", ylabel="log10 of the wealth", ylim=(-4, 30))
ax.legend()
plt.show()

# %% [markdown]
# ## Batches
# `batch_test` looks at the images of one batch: how many are out of distribution, at a false-discovery rate. No single
# image with the weakest noise is unusual enough to be a discovery, and members agree about these images; all
# photographs are discoveries. The monitor sees that many images are a little unusual.

# %%
for name in ("id", "gaussian-noise-1", "photos"):
    print(f"{name}:", batch_test(detector.predict(sets[name]), detector.threshold))
