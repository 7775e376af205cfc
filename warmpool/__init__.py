"""Serverless inference for JAX: declare, publish and serve models from warm executables."""

__version__ = "0.1.0"
