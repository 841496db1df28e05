"""Thresholds and limits: each with its unit, what it limits, and how it was measured.

"Measured" means the programs in ``benchmarks/`` on 2 to 4 ranks of one node, unless it says otherwise.
"""

# -- planning ---------------------------------------------------------------------------------------------------------

DEFAULT_SCRATCH = 2**25
"""Bytes. The scratch limit of a relayout that names none: what it may use beyond its source and target block."""

SAMPLED_DEVICES = 4096
"""Devices. Estimate traffic between two meshes from at most this many evenly spaced devices: planning stays below
10 ms for meshes of a million ranks."""

# -- exchanges --------------------------------------------------------------------------------------------------------

GATHERED_AT_ONCE = 2**16
"""Bytes of a block. Up to this size MPI_Allgatherv is faster than MPI_Alltoallv on a node; measured with MPICH."""

ROUND_BYTES = 2**23
"""Bytes of a block that one round moves on a node with a processor for each rank: what was packed is then still in the
caches when MPI copies it. With fewer processors than ranks a round costs more than that saves."""

MERGED_UP_TO = 2**18
"""Bytes of a block. Tensors with larger blocks get an exchange of their own: packing them costs more than a message
saves."""

LINE = 64
"""Bytes of a cache line. Blocks and messages in a common buffer begin on a line of their own."""

ALIGNED_FROM = 2**18
"""Bytes. From this size on scratch begins at the same byte of a cache line as the block: MPI copies twice as fast
between addresses that are alike."""

LARGEST_COUNT = 2**31 - 1
"""Bytes. The largest count of an MPI before version 4.0."""

LARGEST_MESSAGE = 2**30
"""Bytes. Longer messages are sent in several, which every MPI can count."""

KEPT_ROUNDS = 64
"""Rounds. An exchange keeps its counts for each of up to this many rounds, 16 bytes a rank and round. For more rounds
it computes them each time, which is little beside the blocks of many MiB that such an exchange moves."""

COUNTS_IN_LISTS = 16
"""Ranks of a group. mpi4py reads counts of up to this many ranks faster from a list, of more ranks faster from an
array; measured as the time of an MPI_Alltoallv without data."""

# -- memory -----------------------------------------------------------------------------------------------------------

POOLED_FROM = 2**17
"""Bytes. Smaller blocks come from the C library, which keeps freed memory up to this size."""

COPIED_BY_NUMPY = 2**16
"""Bytes. From this size on our own copy of an array in another order than C's is faster, its preparation included."""

# -- worlds and teams -------------------------------------------------------------------------------------------------

GROUPS_PER_WORLD = 128
GROUPS_PER_TEAM = 16
TEAMS_PER_WORLD = 64
"""Communicators. An MPI has about 2,000 for the whole program: 128 + 64 * 16 leave some to the user."""

PROGRAMS_PER_TEAM = 1024
"""Calls that are kept, ready to run again, for each team."""

COMPARE_EVERY = 64
"""Known calls. After this many the ranks of a team compare all calls since they last agreed."""

COMPARE_SHARED_EVERY = 1024
"""The same for exchanges of ranks that all share memory: these compare their calls in each exchange anyway."""
