"""Functions whose operations wait on all their operands, also on plain arrays.

`fuse` runs a function so. `deferred` has what stands for plain arrays; the expressions are those of tensors.
"""
