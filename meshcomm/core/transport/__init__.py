"""Moves boxes between the blocks of the ranks of a group: over MPI, in shared memory, or relayed."""
