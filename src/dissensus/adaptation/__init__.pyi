from ._adapt import adapt as adapt
from ._ask import Questions as Questions
from ._ask import ask as ask
from ._tune import tune as tune
from .adapted import Adaptation as Adaptation
from .adapted import Adapted as Adapted
from .tuned import Tuned as Tuned
