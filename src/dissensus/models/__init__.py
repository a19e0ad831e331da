"""Tails and the ensemble that stacks them."""

from dissensus.models import tails
from dissensus.models.ensemble import Ensemble

__all__ = ["Ensemble", "tails"]
