from ._extract import extract as extract
from .featureset import FeatureSet as FeatureSet
from .featureset import check_backbone as check_backbone
from .options import ExtractOptions as ExtractOptions
from .writer import FeatureWriter as FeatureWriter
