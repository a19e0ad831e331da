"""Dissensus: diverse ensembles on frozen backbones. Names are listed in __init__.pyi.

>>> from dissensus import evaluate, fit, new_ensemble, suites
>>> suite = suites.load("digits", backbone="pixels")
>>> ensemble = fit(new_ensemble(suite.train, members=5), suite.train, lr=0.01, batch_size=64)
>>> results = evaluate(ensemble, suite.sets)
"""

import lazy_loader

__version__ = "0.1.0"

# Loaded on first use, so that `dissensus --help` does not wait for PyTorch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
