"""BatchPredictor: a detector as a function of batches, for engines that map over data sets.

    import ray
    images = ray.data.read_binary_files("s3://bucket/photos", include_paths=True)
    verdicts = images.map_batches(BatchPredictor, fn_constructor_args=["s3://bucket/runs/mine"], concurrency=4)
    verdicts.write_parquet("s3://bucket/verdicts")

It depends on neither Ray nor Spark: anything that calls a class with dicts of arrays can use it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dissensus._core.errors import DataError
from dissensus.detection.detector import Detector
from dissensus.detection.verdicts import Verdict
from dissensus.images import BadImage, decode, read_image, to_rgb

Batch = Mapping[str, NDArray[Any]]
COLUMNS = ("class", "confidence", "score", "p_value", "verdict", "error")


class BatchPredictor:
    """Predict batches given as arrays by column; loads the detector once, where it is created.

    Args:
        run: A run folder, preferably calibrated; a path or a URL that every node can access.
        column: The column of images: encoded bytes, paths or URLs, or uint8 pixels (H, W, 3). None: "bytes", "image" or
            "path", the first that is present.
        false_alarms: Share of ID samples that may be called out, instead of the calibrated one.
        engine: How the trunk runs: see `Detector`; None: as for the training features.
        device: Where to run.
        keep: Other columns to pass on; None: all but the images.

    Raises:
        DissensusError: If there is no such run, or a batch has no images.

    Example:
        >>> predictor = BatchPredictor("runs/mine")
        >>> predictor({"path": np.array(["cat.jpg"]), "id": np.array([7])})["verdict"]
        array(['nothing unusual'], dtype=object)
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        column: str | None = None,
        *,
        false_alarms: float | None = None,
        engine: str | None = None,
        device: str = "cpu",
        keep: list[str] | None = None,
    ) -> None:
        self.detector, self.column, self.keep = Detector.load(run, engine=engine, device=device), column, keep
        if false_alarms is not None:
            if self.detector.threshold is None:
                raise DataError(f"false_alarms needs a calibrated run; {run} is not: dissensus calibrate {run}")
            self.detector.threshold = self.detector.threshold.at(false_alarms)

    def __call__(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Return the columns of `COLUMNS`, one value per image, and those that are kept."""
        column = self.column or next((name for name in ("bytes", "image", "path") if name in batch), None)
        if column is None or column not in batch:
            raise DataError(
                f"images are in a column, {self.column or 'bytes, image or path'}; the batch has {', '.join(batch)}: "
                "choose column"
            )
        names = [name for name in batch if name != column] if self.keep is None else self.keep
        if wrong := [name for name in names if name not in batch or name in COLUMNS]:
            raise DataError(
                f"columns to keep must be in the batch, and not among {', '.join(COLUMNS)}; got {wrong[0]!r}: rename it"
            )
        verdicts = self._verdicts(batch[column])
        values: dict[str, list[Any]] = {
            "class": [verdict.class_name for verdict in verdicts],
            "confidence": [verdict.confidence for verdict in verdicts],
            "score": [verdict.score for verdict in verdicts],
            "p_value": [verdict.p_value for verdict in verdicts],
            "verdict": [verdict.verdict for verdict in verdicts],
            "error": [verdict.error for verdict in verdicts],
        }
        numbers = ("confidence", "score", "p_value")
        answers = {name: np.array(values[name], np.float32 if name in numbers else object) for name in COLUMNS}
        return {**{name: batch[name] for name in names}, **answers}

    def _verdicts(self, images: NDArray[Any]) -> list[Verdict]:
        """Return the verdict of every image, in order; one that cannot be read has an error."""
        verdicts, pictures = [Verdict("")] * len(images), dict[int, Image.Image]()
        for i, value in enumerate(images):
            try:
                pictures[i] = _opened(value)
            except BadImage as error:
                verdicts[i] = Verdict(str(i), error=str(error))
        if pictures:
            for i, verdict in zip(pictures, self.detector.predict(list(pictures.values())), strict=True):
                verdicts[i] = verdict
        return verdicts


def _opened(value: Any) -> Image.Image:
    if isinstance(value, bytes | bytearray | memoryview):
        return decode(bytes(value))
    if isinstance(value, str):
        return read_image(value)
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return to_rgb(Image.fromarray(value))
    raise DataError(f"an image is bytes, a path or uint8 pixels (H, W, 3); got {type(value).__name__}: convert it")
