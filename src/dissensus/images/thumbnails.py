"""Thumbnails as data: URLs, for HTML pages that are one file."""

from __future__ import annotations

import base64
import io

from PIL import Image

PIXELS = 96  # of the longer side


def thumbnail(image: Image.Image, pixels: int = PIXELS) -> str:
    """Return a small copy of an image as a data: URL; a tiny image is enlarged without blurring its pixels."""
    scale = pixels / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    tiny = scale > 2
    file = io.BytesIO()
    image.resize(size, Image.Resampling.NEAREST if tiny else Image.Resampling.BICUBIC).save(
        file, "PNG" if tiny else "JPEG", quality=85
    )
    return f"data:image/{'png' if tiny else 'jpeg'};base64,{base64.b64encode(file.getvalue()).decode()}"
