"""Reductions: sums, extrema and their indices, norms, histograms."""
