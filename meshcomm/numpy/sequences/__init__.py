"""Functions along an axis: cumulative sums, differences, gradients, convolutions, polynomials."""
