"""Functions of elementwise operations that go over their operands once, in pieces that stay in the cache.

`fuse` runs a function on values that wait, which `deferred` makes. `jobs` finds what is needed for its results.
`programs` compute that on arrays, by the `functions` of NumPy; `evaluate` runs them on tensors, too. `reads` decides
whether a function has to run again. `lines` says which line of the program a warning or an error names.
"""
