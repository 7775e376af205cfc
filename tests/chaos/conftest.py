"""Chaos is brought upon the instances and stores that the tests of warmpool use."""

from tests.warmpool.conftest import fingerprint, own_store, published, tiny_store

__all__ = ["fingerprint", "own_store", "published", "tiny_store"]
