"""Turns a PNG of a handwritten digit into what the network was trained on: 8 by 8 numbers from 0 to 16.

scikit-learn's digits were made by counting the ink in blocks of 4 by 4 of a 32 by 32 bitmap, so paper is 0 and full
ink 16. A PNG is laid on white where it is transparent, turned to grey, averaged down to 8 by 8, and inverted where its
border is light, as dark ink on light paper is. White strokes on black stay as they are.
"""

from __future__ import annotations

from io import BytesIO

from PIL import Image, ImageOps, ImageStat

from warmpool.errors import BadInput, TooLarge

SIDE = 8
INK_MAX = 16.0
PNG_BYTES_MAX = 1 << 20
PNG_PIXELS_MAX = 4_000_000  # a small PNG can claim a huge picture


def grey_of(png: bytes) -> Image.Image:
    """Decode a PNG to 8 bit grey.

    Raises:
        TooLarge: It has too many bytes or claims too many pixels.
        BadInput: It is no PNG, or a broken one.
    """
    if len(png) > PNG_BYTES_MAX:
        raise TooLarge(f"body: got {len(png)} bytes of PNG; allowed: up to {PNG_BYTES_MAX}")
    try:
        with Image.open(BytesIO(png), formats=("PNG",)) as image:
            if image.width * image.height > PNG_PIXELS_MAX:
                came = f"{image.width} by {image.height} pixels"
                raise TooLarge(f"body: got a PNG of {came}; allowed: up to {PNG_PIXELS_MAX} pixels")
            layers = image.convert("RGBA")
    # Pillow reports broken files with whatever exception its decoder met.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput(
            "body: got no readable PNG; allowed: a PNG image, or JSON with content-type application/json"
        ) from error
    paper = Image.new("RGBA", layers.size, "white")
    return Image.alpha_composite(paper, layers).convert("L")


def border_mean(grey: Image.Image) -> float:
    """The mean brightness, 0 to 255, of the outermost pixels."""
    inside = Image.new("L", grey.size, 255)
    if grey.width > 2 and grey.height > 2:
        inside.paste(0, (1, 1, grey.width - 1, grey.height - 1))
    return ImageStat.Stat(grey, mask=inside).mean[0]


def pixels_of(png: bytes) -> list[list[float]]:
    """The picture as 8 rows of 8 numbers from 0 (paper) to 16 (ink)."""
    grey = grey_of(png)
    if border_mean(grey) > 127.5:
        grey = ImageOps.invert(grey)
    # Pictures that are not square keep their proportions, on black: ink is bright by now.
    small = ImageOps.pad(grey, (SIDE, SIDE), method=Image.Resampling.BOX, color=0)
    levels = [level * INK_MAX / 255 for level in small.tobytes()]
    return [levels[row : row + SIDE] for row in range(0, SIDE * SIDE, SIDE)]
