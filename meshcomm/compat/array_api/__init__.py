"""The Python array API standard: :mod:`meshcomm.array_api` has its names."""
