from . import backbones as backbones
from . import suites as suites
from ._core.errors import DissensusError as DissensusError
from .detection import Detector as Detector
from .detection import ImageEnsemble as ImageEnsemble
from .estimators import DissensusClassifier as DissensusClassifier
from .evaluation import Results as Results
from .evaluation import Suite as Suite
from .evaluation import SuiteSet as SuiteSet
from .evaluation import evaluate as evaluate
from .features import ExtractOptions as ExtractOptions
from .features import FeatureSet as FeatureSet
from .features import FeatureWriter as FeatureWriter
from .features import extract as extract
from .functional import aggregates as aggregates
from .functional import losses as losses
from .functional import metrics as metrics
from .functional import scores as scores
from .functional.scores import SCORES as SCORES
from .images import ImageSet as ImageSet
from .models import Ensemble as Ensemble
from .models import tails as tails
from .training import METHODS as METHODS
from .training import TrainOptions as TrainOptions
from .training import fit as fit
from .training import new_ensemble as new_ensemble

__version__: str
