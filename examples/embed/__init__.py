"""Sentence embeddings: all-MiniLM-L6-v2 in Flax NNX, text in, unit vectors out."""
