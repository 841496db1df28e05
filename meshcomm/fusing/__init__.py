"""Functions whose operations wait, also on plain arrays.

`fuse` runs such a function. `deferred` has the class that stands for plain arrays; its expressions are as for tensors.
"""
