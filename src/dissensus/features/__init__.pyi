from ._extract import extract as extract
from ._merge import merge as merge
from ._provenance import backbone_of as backbone_of
from ._provenance import check_backbone as check_backbone
from .featureset import FeatureSet as FeatureSet
from .joined import JoinedFeatures as JoinedFeatures
from .options import ExtractOptions as ExtractOptions
from .writer import FeatureWriter as FeatureWriter
