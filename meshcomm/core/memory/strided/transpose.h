/* Copy a transposed box tile by tile.
 *
 * Row by row, a transpose would use one item of each source line and come back for the next item much later, when the
 * line has left the cache. A tile reads whole source lines and writes whole target lines:
 *
 *     source                      target
 *         +----+----+----+            +------+------+        for row in steps of tile rows:
 *         | 1  | 2  | 3  |            | 1    | 4    |            for column in steps of tile columns:
 *         +----+----+----+            +------+------+                turn the tile in registers
 *         | 4  | 5  | 6  |    ->      | 2    | 5    |                into the target, or into the buffer,
 *         +----+----+----+            +------+------+                which is then written row by row
 *                                     | 3    | 6    |
 *                                     +------+------+
 */
#ifndef MESHCOMM_STRIDED_TRANSPOSE_H
#define MESHCOMM_STRIDED_TRANSPOSE_H

#include "batch.h"
#include "moves.h"
#include "tiles.h"

/* Choose the sides of a tile. A source row of a tile has two cache lines. A tile has many source rows, so that its
 * target rows are long: a target row may fill only a fraction of the cache lines at its ends. If the box is too small
 * for one side, the other side gets longer. */
static void tile_sides(Length rows, Length columns, Length item, Length *tile_rows, Length *tile_columns) {
    const Length wide = item < LINE ? 2 * LINE / item : 1, high = BUFFER / (2 * LINE);
    *tile_rows = smaller(rows, columns < wide ? BUFFER / (item * columns) & -(Length)LINE : high);
    *tile_columns = smaller(columns, rows < high ? BUFFER / (item * rows) & -(Length)LINE : wide);
    if (*tile_rows < 1)
        *tile_rows = smaller(rows, high);
    if (*tile_columns < 1)
        *tile_columns = smaller(columns, wide);
}

/* Return the length of the first step: shorter, if that lets all later steps begin at the start of a cache line. */
STRIDED_INLINE Length first_step(Length step, Length extent, const char *start, Length stride, Length item) {
    if (step >= extent || step * item < 2 * LINE || stride % LINE)
        return step;
    return step - (Length)((uintptr_t)start & (LINE - 1)) / item;
}

/* Copy a batch of one box whose last two loops are a transpose. */
static void copy_transposed(Batch *batch) {
    const Box *box = batch->box;
    const Loop outer = box->loop[box->loops - 2], inner = box->loop[box->loops - 1];
    const Length item = box->run;
    const Length apart = outer.target % (8 * LINE);
    /* A list that does not stream needs no buffer, unless the target rows of a tile share few sets of the cache. */
    const int direct = !batch->streams && apart >= LINE && apart <= 7 * LINE;
    /* A register holds few large items: that does not pay for stores that cross cache lines. */
    const int turns = is_item(item) && inner.target == item && outer.source == item &&
                      !(direct && item >= 8 && (item == 16 || outer.target % 16));
    Length step_rows, step_columns, row, column, rows, columns, k;
    tile_sides(inner.extent, outer.extent, item, &step_rows, &step_columns);
    for (row = 0; row < inner.extent; row += rows) {
        rows = row ? step_rows : first_step(step_rows, inner.extent, batch->target[0], outer.target, item);
        rows = smaller(rows, inner.extent - row);
        for (column = 0; column < outer.extent; column += columns) {
            const char *source = batch->source[0] + row * inner.source + column * outer.source;
            char *target = batch->target[0] + row * inner.target + column * outer.target;
            Tile tile = {source, NULL, inner.source, batch->writer.buffer, rows * item, rows, 0, 0};
            columns = column ? step_columns : first_step(step_columns, outer.extent, source, inner.source, item);
            columns = smaller(columns, outer.extent - column);
            tile.columns = columns;
            if (batch->streams)
                tile.ahead = column + columns < outer.extent ? columns * outer.source
                                                             : rows * inner.source - column * outer.source;
            if (!turns) {
                for (k = 0; k < columns; k++)
                    copy_rows(target + k * outer.target, inner.target, source + k * outer.source, inner.source, item,
                              rows);
            } else if (direct) {
                tile.target = target, tile.target_stride = outer.target;
                turn_tile(tile, item);
            } else if (rows * item == outer.target) {
                turn_tile(tile, item);
                copy_run(target, tile.target, columns * rows * item, 0, batch->streams);
            } else {
                if (columns <= MAX_MEMBERS) /* LINE bytes between rows, for the reason in split.h */
                    tile.target_stride += LINE;
                for (k = 0; k < columns && batch->streams; k++)
                    prefetch_ends(target + k * outer.target, rows * item);
                turn_tile(tile, item);
                for (k = 0; k < columns; k++)
                    copy_run(target + k * outer.target, tile.target + k * tile.target_stride, rows * item, 0,
                             batch->streams);
            }
        }
    }
}

#endif
