from ._fit import fit as fit
from .create import new_ensemble as new_ensemble
from .methods import METHODS as METHODS
from .methods import Method as Method
from .options import Settings as Settings
from .options import TrainOptions as TrainOptions
from .run import Run as Run
from .scoring import fit_scores as fit_scores
