"""Bucket plans that fit what callers send: which sizes to compile for, computed from the shapes that were counted."""
