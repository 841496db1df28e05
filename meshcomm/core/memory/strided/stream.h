/* Write long runs past the caches.
 *
 * A usual store first reads its cache line from memory. A streaming store that fills a whole line does not, which
 * saves one of three memory accesses. The ends of a run may share their lines with other data, so they are written by
 * usual stores:
 *
 *     target    ....hh|llllllllllllllll|llllllllllllllll|llllllllllllllll|tttt....
 *                 ^ head: memcpy       ^ whole lines: streaming stores    ^ tail: memcpy
 *
 *     for each line:   load 4 registers of 16 bytes
 *                      prefetch to the second-level cache, L2_AHEAD bytes ahead
 *                      prefetch to the first-level cache, L1_AHEAD bytes ahead
 *                      store 4 registers past the caches
 */
#ifndef MESHCOMM_STRIDED_STREAM_H
#define MESHCOMM_STRIDED_STREAM_H

#include "tuning.h"

/* The addresses to prefetch during the copy of a run: with its byte i the byte `first` + i, and from i = `until` on
 * the byte `then` + i. The second address lets a prefetch go on in the next run. */
typedef struct {
    const char *first, *then;
    Length until;
} Prefetch;

/* Prefetch *ahead* bytes ahead, in runs of *size* bytes at a stride. */
STRIDED_INLINE Prefetch prefetch_ahead(const char *source, Length size, Length stride, Length ahead) {
    Prefetch prefetch = {source + ahead, source + stride + ahead - size, size - ahead};
    if (ahead >= size)
        prefetch.first = source + ahead / size * stride, prefetch.until = size;
    return prefetch;
}

STRIDED_INLINE const char *prefetch_address(Prefetch prefetch, Length i) {
    return (i < prefetch.until ? prefetch.first : prefetch.then) + i;
}

/* Copy a run past the caches. */
STRIDED_INLINE void stream_prefetching(char *target, const char *source, Length size, Prefetch to_l1, Prefetch to_l2) {
#if STRIDED_SIMD
    Length head = (Length)(-(uintptr_t)target & (LINE - 1)), i;
    if (size < head + LINE) {
        memcpy(target, source, size);
        return;
    }
    memcpy(target, source, head);
    for (i = head; i <= size - LINE; i += LINE) {
        const __m128i *from = (const __m128i *)(source + i);
        __m128i *to = (__m128i *)(target + i);
        __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
        __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        STRIDED_PREFETCH_L2(prefetch_address(to_l2, i));
        STRIDED_PREFETCH_L1(prefetch_address(to_l1, i));
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    memcpy(target + i, source + i, size - i);
#else
    (void)to_l1, (void)to_l2;
    memcpy(target, source, size);
#endif
}

/* Prefetch the lines at the two ends of a run, unless the run fills them. */
STRIDED_INLINE void prefetch_ends(const char *target, Length size) {
    if ((uintptr_t)target & (LINE - 1))
        STRIDED_PREFETCH_L1(target);
    if ((uintptr_t)(target + size) & (LINE - 1))
        STRIDED_PREFETCH_L1(target + size);
}

/* Copy a run past the caches; the run that is read next begins *stride* bytes after this one. */
static void stream_run(char *target, const char *source, Length size, Length stride) {
    stream_prefetching(target, source, size, prefetch_ahead(source, size, stride, L1_AHEAD),
                       prefetch_ahead(source, size, stride, L2_AHEAD));
}

/* Copy a run, past the caches or not. */
STRIDED_INLINE void copy_run(char *target, const char *source, Length size, Length stride, int streams) {
    if (streams)
        stream_run(target, source, size, stride);
    else
        memcpy(target, source, size);
}

#endif
