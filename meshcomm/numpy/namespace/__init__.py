"""What `meshcomm.numpy` has beside NumPy's own functions: creation on the default mesh, by one rule."""
