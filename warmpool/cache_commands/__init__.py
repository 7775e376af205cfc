"""`warmpool cache`: keys, and care for a store. One file a command."""
