"""What a lane runs next: pure decisions over values, without clock or I/O, for the front and for simulations."""
