"""ExtractOptions: how images become features. The one list for Python, the command line and suites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dissensus._core.errors import DissensusError
from dissensus._core.options import AT_LEAST_0, AT_LEAST_1, SEED, Rule, check, option, share


@dataclass(frozen=True)
class ExtractOptions:
    """How `extract` reads images, runs them through the trunk and stores the features.

    Raises:
        DissensusError: for a value that breaks its rule, such as batch_size=0.
    """

    augment: int = option(
        0, "passes of random crops and flips to store, of which training takes one per epoch; 0: the centre", AT_LEAST_0
    )
    corruption: str | None = option(None, "a corruption of ImageNet-C to apply: dissensus list corruptions")
    severity: int = option(1, "severity of the corruption, 1 to 5")
    view: str | None = option(None, "a stand-in to make of each image: dissensus list views")
    seed: int = option(0, "decides crops, flips, corruptions and views", SEED)
    batch_size: int = option(64, "images per batch through the trunk", AT_LEAST_1)
    workers: int | None = option(
        None, "processes that read images; by default one per core, at most 8; 0: only this process", AT_LEAST_0
    )
    engine: str = option(
        "eager",
        "how the trunk runs: dissensus list engines; onnx is faster on CPUs",
    )
    dtype: Literal["float16", "float32"] = option("float16", "type of the features on disk")
    shard_images: int = option(4096, "images per shard; a kill costs at most the shard in progress", AT_LEAST_1)
    max_bad: float = option(
        0.01,
        "share of images that may be unreadable, such as 1% or 0.01; above 0, at least one may; "
        "they are left out and listed in bad.tsv",
        Rule("a share within 0..1", lambda value: 0 <= value <= 1),
        parse=share,
    )
    strict: bool = option(False, "fail at the first unreadable image")

    def __post_init__(self) -> None:
        check(self)
        if self.corruption is None and self.severity != 1:
            raise DissensusError(
                f"severity is of a corruption; got severity={self.severity} and none: add --corruption"
            )
        if self.corruption is not None and self.view is not None:
            raise DissensusError(
                f"an image is corrupted or made a stand-in; got --corruption {self.corruption} and --view {self.view}: "
                "leave one out"
            )
