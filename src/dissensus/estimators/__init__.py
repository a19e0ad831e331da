"""Estimators that follow the contracts of scikit-learn and pytorch-ood.

Names are listed in __init__.pyi.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
