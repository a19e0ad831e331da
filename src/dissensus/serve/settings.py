"""Settings that the tabs of the page share."""

from __future__ import annotations

from typing import Any

MANY = 200  # files per upload
KEPT = 1800  # seconds for which uploads and inspections are kept
HIDDEN: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}  # the API is `api.py`, not Gradio's
