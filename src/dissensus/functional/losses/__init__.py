"""What members are trained for: fit the labels, disagree where it is hard.

`a2d`, `divdis`, `hardness` and `sed` are the readable definitions, differentiable by autograd; `fused` holds
the closed-form values and gradients that the trainer uses, equal to the definitions to rounding.
"""

from dissensus.functional.losses.disagreement import a2d, divdis
from dissensus.functional.losses.hardness import ensemble_cross_entropy, hardness
from dissensus.functional.losses.sed import REGULARISERS, cross_entropy, sed

__all__ = ["REGULARISERS", "a2d", "cross_entropy", "divdis", "ensemble_cross_entropy", "hardness", "sed"]
