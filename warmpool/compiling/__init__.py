"""The compile service of an instance: what is missing is made by a process beside it, while it serves."""
