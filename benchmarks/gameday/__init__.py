"""A game day: faults brought upon a running instance, under load, with every answer checked."""
