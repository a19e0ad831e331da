from ._evaluate import evaluate as evaluate
from .predictions import Predictions as Predictions
from .predictions import predict as predict
from .results import Results as Results
from .suite import Suite as Suite
from .suite import SuiteSet as SuiteSet
from .tables import Table as Table
