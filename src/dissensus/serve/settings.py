"""What a request may cost, and settings that the tabs of the page share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image

from dissensus._core.errors import DissensusError

MANY = 200  # files per upload
KEPT = 1800  # seconds for which uploads and inspections are kept
HIDDEN: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}  # the API is `api.py`, not Gradio's


@dataclass(frozen=True)
class Limits:
    """What one request may cost, and how images share a pass; the fields are flags of `dissensus serve`.

    Attributes:
        max_upload_mb: The largest body of a request to the API, and the largest file on the page.
        max_pixels: The largest image, in megapixels; images of one request may have `MANY_PIXELS` times as many.
        max_seconds: From the complete upload to the answer; also how long a stop waits for requests.
        max_batch: Images per pass of the trunk.
        max_wait_ms: How long the first image of a pass waits for others that are being decoded.
    """

    max_upload_mb: float = 20.0
    max_pixels: float = 40.0
    max_seconds: float = 30.0
    max_batch: int = 32
    max_wait_ms: float = 5.0

    MANY_PIXELS = 5

    def __post_init__(self) -> None:
        pillow = (Image.MAX_IMAGE_PIXELS or 1e9) / 1e6
        for name, low, high, example in (
            ("max_upload_mb", 0.001, 2000, 20),
            ("max_pixels", 0.001, pillow, 40),
            ("max_seconds", 0.001, 3600, 30),
            ("max_batch", 1, 1024, 32),
            ("max_wait_ms", 0, 1000, 5),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                flag = "--" + name.replace("_", "-")
                raise DissensusError(f"{flag} must be from {low:g} to {high:.4g}; got {value:g}: try {example}")

    @property
    def upload(self) -> int:
        """Bytes of a request to the API."""
        return int(self.max_upload_mb * 1e6)

    @property
    def pixels(self) -> int:
        """Pixels of an image."""
        return int(self.max_pixels * 1e6)
