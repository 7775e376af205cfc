"""The compile cache: fingerprints, keys, artifacts, stores, executables. Knows no models and no requests."""
