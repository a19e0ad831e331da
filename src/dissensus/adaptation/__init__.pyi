from ._tune import tune as tune
from .tuned import Tuned as Tuned
