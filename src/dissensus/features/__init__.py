"""Features: what the frozen trunk outputs, extracted once and kept in a folder."""

from dissensus.features.featureset import FeatureSet, check_backbone
from dissensus.features.writer import FeatureWriter

__all__ = ["FeatureSet", "FeatureWriter", "check_backbone"]
