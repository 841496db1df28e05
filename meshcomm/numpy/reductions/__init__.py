"""Functions that make one value of many: sums, extrema and where they are, norms, histograms."""
