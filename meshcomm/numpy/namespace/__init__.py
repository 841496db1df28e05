"""What `meshcomm.numpy` has beside NumPy's own functions: creation on the default mesh, and the rule of its layouts."""
