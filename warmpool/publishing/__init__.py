"""Publishing a model: the only part of warmpool that runs an author's code, and the only one that compiles."""
