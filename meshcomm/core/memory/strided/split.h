/* Split items: neighbours in one source go to several targets.
 *
 * The inverse of join.h. Each target is a long run, so the tile is turned into the buffer, and each row of the buffer
 * is written to its target as a whole:
 *
 *     source     |a0|b0|c0|a1|b1|c1|a2 ...
 *                    |                        for i in steps of items:
 *     buffer     |a0|a1|a2| ... LINE              turn the tile (rows i to i + step, columns a b c)
 *                |b0|b1|b2| ... LINE              into the buffer
 *                |c0|c1|c2| ... LINE              for member in batch:
 *                    |                                write its row of the buffer to its target
 *     targets    a, b, c
 */
#ifndef MESHCOMM_STRIDED_SPLIT_H
#define MESHCOMM_STRIDED_SPLIT_H

#include "batch.h"
#include "tiles.h"

/* Copy a batch of items from one source. */
static void copy_split(Batch *batch) {
    const Box *box = batch->box;
    const Loop loop = box->loop[box->shared - 1];
    const Length item = box->run;
    Length step = BUFFER / item / box->members, i, m;
    char *buffer = batch->writer.buffer;
    step -= step > LINE ? step % LINE : 0;
    for (i = 0; i < loop.extent; i += step) {
        const Length rows = smaller(step, loop.extent - i);
        /* LINE bytes between the rows of the buffer: at a distance of 4096 bytes, the processor would take a load
         * for one that depends on an earlier store. */
        const Tile tile = {batch->source[0] + i * loop.source, NULL, loop.source, buffer, rows * item + LINE, rows,
                           box->members, 0};
        turn_tile(tile, item);
        for (m = 0; m < box->members; m++) {
            char *target = batch->target[m] + i * item;
            const char *data = buffer + m * (rows * item + LINE);
            /* While a line is written, a later line of the source is prefetched. */
            const char *next = tile.source + (rows + m * rows / box->members) * loop.source;
            const Prefetch to_l1 = {next, NULL, rows * item}, to_l2 = {next + L2_AHEAD, NULL, rows * item};
            if (batch->streams)
                stream_prefetching(target, data, rows * item, to_l1, to_l2);
            else
                memcpy(target, data, rows * item);
        }
    }
}

#endif
