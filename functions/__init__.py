"""The edge: HTTP handlers for functions-framework and the client of the pool."""
