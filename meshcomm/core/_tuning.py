"""Thresholds and limits of the core: each with its unit, what it limits, and how it was measured.

Those of one feature are in the module that uses them, in the same form. "Measured" means with the programs in
``benchmarks/`` on 2 to 4 ranks of one node, unless it says otherwise. "A compromise" is a limit that is chosen, not
measured, and is followed by the reasons.
"""

# -- arrays of NumPy --------------------------------------------------------------------------------------------------

WHOLE_ARRAY = 2**26
"""Bytes of a sharded tensor. Up to this size ``numpy.asarray(t)`` gathers it. A compromise: libraries convert labels
and results, which are small; each rank needs the memory, and a program should gather larger tensors by `to_numpy`."""

WHOLE_BELOW = 2**20
"""Bytes of an array that a function of meshcomm.numpy creates. Smaller ones are replicated on every rank, unless
``MESHCOMM_WHOLE_BELOW`` sets another size. Measured on 2 ranks of a busy node, time of the sharded array over that of
the replicated one, at 256 KiB, 1 MiB and 4 MiB: a stencil by slices 5, 0.7 and 0.3 in one dimension, 2.9, 1.6 and 0.6
in two; a sum 5.6, 4.6 and 0.7; deviations from means of columns 7, 1.6 and 0.8; ``x.T @ x`` 3.8, 1.5 and 0.8;
``x @ x`` 1.5, 0.9 and 0.6; ``x[5] @ x[7]`` 200 each; elementwise operations 0.5 each. The results are the
same for 4 ranks on two cores. A compromise: programs mix these operations."""

# -- planning ---------------------------------------------------------------------------------------------------------

DEFAULT_SCRATCH = 2**25
"""Bytes. The default scratch limit of a relayout: memory that it may use beyond its source and target block."""

SAMPLED_DEVICES = 4096
"""Devices. Estimate traffic between two meshes from at most this many evenly spaced devices: planning stays below
10 ms for meshes of a million ranks."""

# -- exchanges --------------------------------------------------------------------------------------------------------

GATHERED_AT_ONCE = 2**16
"""Bytes of a block. Up to this size MPI_Allgatherv is faster than MPI_Alltoallv on a node; measured with MPICH."""

MAX_HEADER_BLOCK_BYTES = 2**15
"""Bytes of a block. Up to this size the digest of calls travels in the messages of an exchange over MPI, whose blocks
are packed for it. Measured with MPICH on 2 and 4 ranks: for 16 KiB that costs 8 %, messages of their own 20 %."""

MAX_PAIRWISE_RANKS = 16
"""Ranks of a group. Up to this many, the digest of calls in a large exchange over MPI goes to each peer in a message;
else it is compared in a reduction. Measured with MPICH and Open MPI on 2 and 4 ranks: half of the time."""

IDLE_CHANNELS = 2
"""Channels that an exchange of small blocks over MPI keeps between calls: the buffers of its messages, and requests.
While more such exchanges are in flight, more channels are made. One takes about twice `MAX_HEADER_BLOCK_BYTES` at
most."""

CHANNELS_PER_GROUP = 16
"""Small exchanges of a group that keep channels: the newest ones. All idle channels of a group take about 2 MiB at
most."""

ROUND_BYTES = 2**23
"""Bytes of a block that one round moves on a node with a processor for each rank: packed data are then still in the
caches when MPI copies them. With fewer processors than ranks a round costs more time than this saves."""

MESSAGE_BYTES = 2**22
"""Bytes of a message between hosts in a round of a large exchange. Measured with UCX over TCP, at 10 Gbit/s: shorter
messages are copied once more by the receiver, and took up to 1.5 times as long."""

SLOW_NETWORK, SLOW_MESSAGE_BYTES = 1.4e-9, 2**21
"""Seconds for a byte on the link of a host, and the bytes of a message on slower links. Measured at 4 Gbit/s: the copy
by the receiver takes less time than such a network, and shorter messages keep the link busy from the beginning."""

LOCAL_COPY_PIECES = 4
"""Pieces in which a rank copies the elements that it keeps, in each round between hosts: messages advance between two
pieces."""

ADVANCE_EVERY = 3e-4
"""Seconds between two calls of MPI that let messages advance while the program computes. Measured at 4 and 10 Gbit/s:
the buffers of the system hold some milliseconds of messages, but a busy processor may be late by as much."""

MERGED_UP_TO = 2**18
"""Bytes of a block. Tensors with larger blocks get an exchange of their own: packing them costs more time than fewer
messages save."""

LINE = 64
"""Bytes of a cache line. Blocks and messages in a common buffer begin on a line of their own."""

ALIGNED_FROM = 2**18
"""Bytes. From this size on, the address of scratch matters: see `SCRATCH_PAGE_OFFSETS`."""

SCRATCH_PAGE_OFFSETS = {"send": 2048, "receive": 1024}
"""Bytes, modulo a page, from the start of a block to that of scratch memory. MPI copies between processes by a call of
the system. Measured on AMD and Linux: that takes four times as long to an address that is 1 to 31 bytes beyond the
source, modulo a page. These offsets avoid it for most messages between a block and scratch, or between two kinds of
scratch. Copies are the fastest when both addresses have the same offset in a cache line."""

MAX_COUNT = 2**31 - 1
"""Bytes. The largest count of an MPI before version 4.0."""

MAX_MESSAGE_BYTES = 2**30
"""Bytes. Longer messages are split, so that every MPI can count their bytes."""

KEPT_ROUNDS = 64
"""Rounds. An exchange keeps its counts of up to this many rounds, 16 bytes for each rank and round. For more rounds it
computes them each time, which takes little time compared with blocks of many MiB."""

COUNTS_IN_LISTS = 16
"""Ranks of a group. mpi4py reads counts of up to this many ranks faster from a list, of more ranks faster from an
array; measured as the time of an MPI_Alltoallv without data."""

# -- memory -----------------------------------------------------------------------------------------------------------

POOLED_FROM = 2**17
"""Bytes. Smaller blocks come from the C library, which keeps freed memory up to this size."""

OWN_COPY_FROM = 2**16
"""Bytes. From this size on, our own copy of an array that is not C-contiguous is faster than NumPy's, its preparation
included."""

POOL_KEEPS = 2**26
"""Bytes. A pool always keeps this much free memory, so memory of small programs never goes back to the system. A
compromise: it is little compared with the memory of a node with a few ranks."""

MIN_UNMERGED_RANGE = 2**16
"""Bytes. Free ranges of a pool of at least this length are not merged with their neighbours, so that each turn of a
loop finds ranges of the same lengths. Measured: loops with 2 to 6 blocks have no page faults after the second turn."""

MAX_ADDRESS_SPACE_SHARE = 1 / 4
"""Largest fraction of the free address space under RLIMIT_AS that a new pool may reserve. A compromise: besides the
own pool and the mapped ones, the program keeps more than half of the address space."""

POOL_WINDOW = 10.0
POOL_WINDOW_FREES = 64
"""The length of a window of a pool: this many seconds and this many frees, whichever takes longer. A pool gives back
memory that was not used in a whole window. So a loop keeps its memory if a turn takes less than 10 s or frees fewer
than 64 blocks."""

# -- worlds and rank sets ---------------------------------------------------------------------------------------------

GROUPS_PER_WORLD = 128
GROUPS_PER_RANK_SET = 16
RANK_SETS_PER_WORLD = 64
"""Communicators. Most MPIs have about 2,000 for the whole program: 128 + 64 * 16 leave some to the user."""

RESOURCES_PER_RANK_SET = 8
"""Grids of processes. Other libraries need about four communicators for each. A compromise: programs use few grids."""

PREPARED_PER_RANK_SET = 1024
"""Prepared calls that each rank set keeps."""

COMPARE_EVERY = 1024
"""Known calls. After this many, the ranks of a rank set agree that they made the same calls. A compromise: exchanges
compare the digests of calls anyway, so this is for calls that move no data."""

REMEMBERED_DIGESTS = 64
"""Digests of the last calls that each rank set keeps. Ranks that wait compare them: see `failures/missing_ranks`."""

# -- waiting ----------------------------------------------------------------------------------------------------------

ASK_AFTER = 2.0
"""Seconds that a rank waits in one call before it asks which ranks are missing. A compromise: soon for the user, and
ranks of most programs never wait so long."""

ASK_EVERY = 1.0
"""Seconds between two such questions, at first; later an eighth of the time waited, so that questions become rare."""

ASK_EVERY_WITH_ERROR = 0.5
"""`ASK_EVERY` of a rank with an error; also the minimum seconds between two liveness checks. A compromise: after an
error the job ends soon, but not if a rank was only stopped for a moment."""

ANSWER_WITHIN = 1.0
"""Seconds in which a rank has to answer a question; later answers are not waited for. Watchdogs answer four times a
second, unless their process is stopped, or runs code that keeps Python's other threads from running."""

WARN_AFTER = 10.0
"""Seconds that a rank waits in one call before it prints a warning with the missing ranks. A compromise: ranks of most
programs never wait so long."""

TELL_ERROR_AFTER = 5.0
"""Seconds. A rank with an error waits this long for the other ranks to agree on it before it prints the error: soon
enough for the user, and late enough for all ranks of a busy machine to reach the call."""

WATCH_EVERY = 0.25
"""Seconds between two looks of the watchdog; a fifth of them while it gathers answers, or has an error. A compromise:
all limits are longer, and four looks a second, 20 µs each, are cheap."""

KEPT_CALLS = 64
"""Calls that the flight recorder of a rank keeps. A compromise: they take about 10 KB and fill a screen."""

WRITE_WITHIN = 1.0
"""Seconds that other ranks get to write their flight files before the job ends, but at most an eighth of the timeout:
one look of their watchdogs, and some time to write. When all have written, the job ends."""

BECOME_RANK_WITHIN = 60.0
"""Seconds in which a process that fails before it has initialised MPI tries to become a rank, to end the job."""

INTERRUPT_WITHIN = 1.0
"""Seconds after Ctrl-C in which Python must leave its call; else the rank waits inside MPI, and the job ends."""

PAUSE_BEFORE_END = 0.1
"""Seconds before a rank ends the job, in which other ranks show that they have the same error."""

END_WITHIN = 2.0
"""Seconds that MPI_Abort may take before the process ends by itself: with a broken network it may never return. Before
MPI_Abort, the process waits this long for others on its host to print their errors, one of which may be the cause,
and half as long for a launcher to read its output."""

POLL_FROM, POLL_TO = 1e-5, 1e-3
"""Seconds between two tests of a barrier with a timeout, at first and later. A compromise: the barrier ends at most
1 ms late, and a rank that waits for long leaves its processor to others."""

MAX_PAUSES = 10_000
"""Times that a simulated rank may test a nonblocking call while no rank does anything. Only a program that waits for
an event that never comes tests more often; 10,000 tests take about 0.1 s."""

# -- arithmetic -------------------------------------------------------------------------------------------------------

INTERVAL_BYTES = 2**22
"""Bytes of a block, counted as if all its elements had memory of their own, that a reduction of other axes takes at
once. Its temporary memory is at most a few times that. Measured with deviations along rows
of 64 MiB: half the time of all at once; 1 and 16 MiB were no faster."""

REDUCED_AT_ONCE = 2**16
"""Bytes of a result of a contraction that has replicas, or of all arrays of an all_reduce. Up to this size each device
adds up all partial sums. For larger ones it adds up one block of the elements, and the blocks are then gathered. A
compromise: this takes one exchange more."""

# -- files ------------------------------------------------------------------------------------------------------------

FILE_IO_GRACE = 1.0
"""Seconds. A rank that has read or written a file within this time counts as active: ranks that wait for it do not
warn."""

FILE_CALL_WITHIN = 600.0
"""Seconds for one system call that reads, writes or syncs a file. A rank that takes longer counts as stuck."""

PAGE = 4096
"""Bytes of a page of memory. In a file, arrays of a checkpoint, and the intervals that ranks write, begin at multiples
of this."""

# -- tensors that are small -------------------------------------------------------------------------------------------

SMALL_MESSAGE = 1024
"""Bytes of a message with a header and the block of a rank. Tensors that fit into one are sent without a plan."""

SMALL_MESHES = 64
"""Devices. On larger meshes a gather of messages from all ranks to all takes longer than a plan."""

MAX_UNPLANNED_BYTES = 2**14
"""Bytes. A slice of at most this size is sent whole to all devices: planning a relayout would take longer."""

PACKED_AT_ONCE = 2**17
"""Bytes that a rank sends or receives. Up to this size, intervals of several tensors go packed in one exchange, even
if most of the elements move; else each tensor moves by a relayout, which packs nothing."""

RECIPES = 1024
"""Recipes of calls that a spec keeps, before they are dropped and made again."""

SPECS = 256
"""Specs that are kept after their tensors are gone. A step of a program has some dozens. To make one again took 5 to
9 µs."""

# -- operations that wait ---------------------------------------------------------------------------------------------

WAITING_FROM = 2**19
"""Bytes of a block. Elementwise operations on blocks of at least this size may wait. Measured for two to eight
operations on one rank, waiting over not waiting: 256 KiB 1.05 to 1.4, 512 KiB 0.75 to 1.3, 1 MiB 0.85 to 1.1, 4 MiB
0.55 to 1. Sums gain least."""

WAITING_OPERATIONS = 32
"""The largest number of elementwise operations in one expression. A compromise: longer ones gain nothing more."""

MAX_ORPHANED_RESULTS = 2
"""Limit on the memory that only waiting operations keep alive, as a multiple of the bytes of the result: above it,
they are computed. NumPy has about as many temporaries in such a formula."""

PIECE_BYTES = 2**18
"""Bytes of a block that operations which waited go over at once. Measured with 3 to 13 buffers on a core with 512 KiB
of L2 and 32 MiB of L3: 128 KiB to 512 KiB take the same time, 64 KiB a fifth more, 32 KiB half more."""

SHORT_AXIS = 16
"""Elements of a last axis. Up to this length pieces of operands that are broadcast are turned, so that universal
functions go over the first axis. Measured with (n, 1, 4) - (8, 4): 0.4 of the time. The length is a compromise."""
