"""Frozen values: which device of a mesh holds which elements of a global array."""
