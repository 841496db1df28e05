"""Elements by index: to get, to set, and to find."""
