"""Blocks with ghosts: copies of the elements around a block, which other devices own, and functions of such blocks.

- `boundaries` defines the values beyond the edges of an array, `widths` the number of ghosts of a block.
- `axes` cuts the ghosts of one axis into runs; `exchange` makes boxes of them for a transport.
- `halo` has the public class, `make` the function that makes one, also for autograd.
- `overlap` and `ndimage` compute blocks from blocks with ghosts.
"""
