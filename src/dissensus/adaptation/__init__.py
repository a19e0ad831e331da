"""Adaptation: choose how to train and detect without OOD data, and among hypotheses with a few labels.

Names are listed in __init__.pyi.
"""

import lazy_loader

# Loaded on first use, so that `dissensus tune --help` does not wait for PyTorch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
