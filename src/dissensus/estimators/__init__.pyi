from .classifier import DissensusClassifier as DissensusClassifier
from .pytorch_ood import EnsembleDetector as EnsembleDetector
