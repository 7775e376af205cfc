"""Measurements of what the project promises, against what people write by hand today. `make bench` runs them."""
