"""A simulator: arrivals that were recorded or drawn, a virtual clock, and the scheduling code that runs live."""
