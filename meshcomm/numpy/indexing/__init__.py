"""Elements by index: get, set and find them."""
