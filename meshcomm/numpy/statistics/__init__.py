"""Means, variances, quantiles, counts, and whole tensors compared."""
