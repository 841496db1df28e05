/* Thresholds of the copies, compiler switches and the two functions that every header uses.
 *
 * The limit of a copy is memory: each cache line should be read once and written once, and not read before it is
 * written. The thresholds below say when a strategy helps to reach that. They were tuned on x86-64 processors with
 * benchmarks/kernels.py. LINE follows from the processor, and MAX_MEMBERS limits arrays on the stack.
 */
#ifndef MESHCOMM_STRIDED_TUNING_H
#define MESHCOMM_STRIDED_TUNING_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Processors without SSE2 do the same in plain C. MESHCOMM_NO_SIMD asks for plain C too: a test compares the two. */
#if (defined(__SSE2__) || defined(_M_X64)) && !defined(MESHCOMM_NO_SIMD)
#include <emmintrin.h>
#define STRIDED_SIMD 1
#else
#define STRIDED_SIMD 0
#endif

#if defined(__GNUC__)
#define STRIDED_INLINE static inline __attribute__((always_inline))
#define STRIDED_PREFETCH_L1(address) __builtin_prefetch(address)
#define STRIDED_PREFETCH_L2(address) __builtin_prefetch(address, 0, 2)
#else
#define STRIDED_INLINE static inline
#define STRIDED_PREFETCH_L1(address) ((void)0)
#define STRIDED_PREFETCH_L2(address) ((void)0)
#endif

enum {
    LINE = 64,             /* bytes: the length of a cache line */
    BUFFER = 16 * 1024,    /* bytes: the size of a write buffer or a tile; half of a first-level cache of 32 KiB */
    SHORT_RUN = 256,       /* bytes: shorter runs are moved inline, without a call of memcpy */
    LONG_RUN = 2048,       /* bytes: runs of this length or longer are copied one by one */
    L1_AHEAD = 4 * 1024,   /* bytes: the lead of prefetches to the first-level cache over the copy */
    L2_AHEAD = 16 * 1024,  /* bytes: the lead of those to the second-level cache, which loads more lines at once */
    MAX_MEMBERS = 64       /* boxes: the most that are copied together as one batch */
};

/* A list of this many bytes or more is written past the caches; the lists of all processes that share a cache count
 * together. Measured: up to 8 MiB, writing past the caches is slower, and more so if the result is read next; from
 * 32 MiB on it is faster; between the two it depends on the case. A test sets this to 0, to write all lists so. */
#ifndef MESHCOMM_STREAM_FROM
#define MESHCOMM_STREAM_FROM (16 << 20)
#endif

typedef ptrdiff_t Length;

STRIDED_INLINE Length smaller(Length a, Length b) { return a < b ? a : b; }
STRIDED_INLINE Length magnitude(Length stride) { return stride < 0 ? -stride : stride; }

#endif
