"""How large a datagram between our processes may be: a file of its own, for the zygote and its parent import little."""

MESSAGE_BYTES_MAX = 1 << 17
