"""Evaluation: suites, one pass over a set, metrics of every aggregate and score, and tables of results.

Names are listed in __init__.pyi.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
