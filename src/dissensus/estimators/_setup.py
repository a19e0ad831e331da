"""What `fit` of an estimator needs before it trains: the samples to hold out, and the device."""

from __future__ import annotations

import math

import numpy as np
from lightning_fabric import Fabric
from lightning_fabric.utilities.exceptions import MisconfigurationException
from numpy.random import RandomState
from numpy.typing import NDArray

from dissensus._core.errors import DissensusError


def held_out_rows(labels: NDArray[np.int64], share: float, needed: int, random: RandomState) -> NDArray[np.int64]:
    """Draw the samples for the threshold, leaving one of each class; none if they would be fewer than `needed`."""
    order = random.permutation(len(labels))
    first_of_class = np.unique(labels[order], return_index=True)[1]
    drawn = np.delete(order, first_of_class)[: math.floor(round(share * len(labels), 9))]
    return drawn if len(drawn) >= needed else drawn[:0]


def fabric_on(device: str) -> Fabric:
    """Return Lightning Fabric on one device."""
    try:
        return Fabric(accelerator=device, devices=1)
    except (ValueError, RuntimeError, MisconfigurationException) as error:
        reason = " ".join(str(error).split())
        raise DissensusError(f"cannot train on device={device!r} ({reason}): use device='cpu'") from error
