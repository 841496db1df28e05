"""Other shapes of the same elements, and tensors like others."""
