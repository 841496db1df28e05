/* Join items: the items of several sources become neighbours in one target.
 *
 * This is how columns of several ranks become one matrix. It is a transpose with one source row per member, so tiles
 * in registers do it:
 *
 *     source a   |a0|a1|a2|a3| ...        tile rows = members, tile columns = a step of items
 *     source b   |b0|b1|b2|b3| ...
 *     source c   |c0|c1|c2|c3| ...        for i in steps of items:
 *                    |                        turn the tile (rows a b c, columns i to i + step)
 *     target     |a0|b0|c0|a1|b1|c1|a2 ...    into the target, or into the buffer if the list streams
 */
#ifndef MESHCOMM_STRIDED_JOIN_H
#define MESHCOMM_STRIDED_JOIN_H

#include "batch.h"
#include "tiles.h"

/* Copy a batch of items to one target. */
static void copy_joined(Batch *batch) {
    const Box *box = batch->box;
    const Loop loop = box->loop[box->shared - 1];
    Length item = box->run, bytes = item * box->members, step = BUFFER / bytes, i, k, m;
    const char *table[MAX_MEMBERS];
    step -= step > LINE ? step % LINE : 0;
    for (i = 0; i < loop.extent; i += step) {
        Length columns = smaller(step, loop.extent - i);
        char *target = batch->target[0] + i * loop.target;
        Tile tile = {NULL, table, 0, target, loop.target, box->members, columns, 0};
        for (m = 0; m < box->members; m++)
            table[m] = batch->source[m] + i * item;
        if (batch->streams && box->dense) {
            tile.target = reserve(&batch->writer, target, columns * bytes);
            turn_tile(tile, item);
        } else if (batch->streams) {
            tile.target = batch->writer.buffer, tile.target_stride = bytes;
            turn_tile(tile, item);
            for (k = 0; k < columns; k++)
                memcpy(target + k * loop.target, batch->writer.buffer + k * bytes, bytes);
        } else {
            turn_tile(tile, item);
        }
    }
}

#endif
