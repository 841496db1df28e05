"""Elementwise functions, and the decorators that register functions for tensors with NumPy."""
