"""Handwritten digits: a small convolutional network, trained here, that takes a PNG or 8 by 8 numbers."""
