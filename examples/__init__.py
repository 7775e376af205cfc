"""Three models with real content, each with the function that stands before it."""
