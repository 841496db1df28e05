"""The members of `meshcomm.numpy` that are not NumPy's own: creation on the default mesh, by one rule."""
