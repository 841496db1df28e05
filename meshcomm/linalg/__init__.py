"""Linear algebra by libraries that are found at run time; loaded only when a program imports it.

:mod:`meshcomm.linalg.scalapack` calls ScaLAPACK on tensors.
"""
