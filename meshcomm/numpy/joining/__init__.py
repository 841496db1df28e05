"""Tensors joined, split, padded and rolled along axes."""
