/* Collect short runs in a buffer, and write the buffer as one long run.
 *
 * Short runs cannot be written past the caches one by one, because they do not fill whole lines. The buffer stays in
 * the first-level cache:
 *
 *     runs        |a|    |b|    |c|        |d|          from anywhere
 *                   \      \     |         /
 *     buffer       |a|b|c|d| ...                |       BUFFER bytes; reserve() gives the next free bytes
 *                   |
 *     target       |a|b|c|d| ...                |       write_out(): when the buffer is full, or when the next run
 *                                                       does not continue the target
 *
 * write_out reads nothing but the buffer. So it prefetches the memory that is read next.
 */
#ifndef MESHCOMM_STRIDED_WRITER_H
#define MESHCOMM_STRIDED_WRITER_H

#include "stream.h"

typedef struct {
    char *target;      /* where the first byte of the buffer belongs */
    Length filled;     /* bytes in the buffer */
    int streams;       /* whether to write past the caches */
    char *buffer;      /* BUFFER bytes */
    Length next_count; /* the number of addresses to prefetch from, each during an equal share of the write */
    const char *next[MAX_MEMBERS];
} Writer;

/* Write the buffer to the target, and empty it. */
static void write_out(Writer *writer) {
    const Length size = writer->filled, shares = writer->next_count ? writer->next_count : 1;
    const Length head = (Length)(-(uintptr_t)writer->target & (LINE - 1));
    Length share, start = 0, stop;
    for (share = 0; share < shares && writer->streams; share++, start = stop) {
        const char *next = writer->next_count ? writer->next[share] : writer->buffer;
        const Prefetch to_l1 = {next, NULL, size}, to_l2 = {next + BUFFER, NULL, size};
        stop = share == shares - 1 ? size : smaller(size, ((share + 1) * size / shares & -(Length)LINE) + head);
        stream_prefetching(writer->target + start, writer->buffer + start, stop - start, to_l1, to_l2);
    }
    memcpy(writer->target + start, writer->buffer + start, size - start);
    writer->target += writer->filled;
    writer->filled = 0;
}

/* Return where to put the next *size* bytes, at most BUFFER, that belong to *target*. */
STRIDED_INLINE char *reserve(Writer *writer, char *target, Length size) {
    if (target != writer->target + writer->filled || writer->filled + size > BUFFER) {
        if (writer->filled)
            write_out(writer);
        writer->target = target;
    }
    writer->filled += size;
    return writer->buffer + writer->filled - size;
}

#endif
