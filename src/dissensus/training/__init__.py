"""Training: methods, options, `fit` and the folder of a run. Names are listed in __init__.pyi."""

import lazy_loader

# Loaded on first use, so that `dissensus train --help` does not wait for PyTorch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
