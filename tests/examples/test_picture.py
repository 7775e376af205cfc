from __future__ import annotations

import numpy as np
import pytest

from examples.digits import train
from examples.digits.picture import PNG_BYTES_MAX, pixels_of
from tests.examples.pictures import ink_on_paper, png_of
from warmpool.errors import BadInput, TooLarge


@pytest.fixture(scope="module")
def held_out() -> train.Split:
    return train.splits()[1]


def test_a_picture_becomes_the_numbers_it_was_drawn_from(held_out: train.Split) -> None:
    for image in held_out.images[:20]:
        dark_on_light = pixels_of(png_of(ink_on_paper(image)))
        light_on_dark = pixels_of(png_of(255 - ink_on_paper(image)))
        np.testing.assert_allclose(dark_on_light, image, atol=0.04)
        np.testing.assert_allclose(light_on_dark, image, atol=0.04)


def test_ink_on_a_transparent_ground_and_tall_pictures_are_read(held_out: train.Split) -> None:
    image = held_out.images[0]
    ink = np.round(np.kron(image, np.ones((16, 16))) * 255 / 16)
    black = np.zeros_like(ink)
    transparent = png_of(np.stack([black, black, black, ink], axis=-1), "RGBA")
    np.testing.assert_allclose(pixels_of(transparent), image, atol=0.07)
    tall = np.full((256, 128), 255.0)
    tall[64:192] = ink_on_paper(image)
    rows = np.array(pixels_of(png_of(tall)))
    assert rows.shape == (8, 8)
    assert rows[:, :2].max() == rows[:, 6:].max() == 0  # the sides that made it square
    assert rows.sum() == pytest.approx(image.sum() / 4, abs=1)


@pytest.mark.parametrize(
    "body", [b"", b"not a picture", png_of(np.zeros((64, 64)))[:60], b"\x89PNG\r\n\x1a\n" + bytes(40)]
)
def test_what_is_no_png_is_refused(body: bytes) -> None:
    with pytest.raises(BadInput, match="allowed: a PNG image"):
        pixels_of(body)


def test_too_large_pictures_are_refused_before_they_are_decoded() -> None:
    with pytest.raises(TooLarge, match="bytes of PNG"):
        pixels_of(bytes(PNG_BYTES_MAX + 1))
    with pytest.raises(TooLarge, match="3000 by 3000 pixels"):
        pixels_of(png_of(np.zeros((3000, 3000))))
