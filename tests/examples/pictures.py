"""Draws digits as a person would send them."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image


def png_of(pixels: np.ndarray, mode: str = "L") -> bytes:
    file = BytesIO()
    Image.fromarray(pixels.astype(np.uint8), mode).save(file, "PNG")
    return file.getvalue()


def ink_on_paper(image: np.ndarray, scale: int = 16) -> np.ndarray:
    """An 8 by 8 image from 0 to 16 as a larger picture with dark strokes on white."""
    return np.kron(255 - np.round(image * 255 / 16), np.ones((scale, scale)))
