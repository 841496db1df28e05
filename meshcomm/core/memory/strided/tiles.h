/* Transpose one tile in registers.
 *
 * A tile is small enough that its source and its target fit into the first-level cache. Registers of 16 bytes read
 * several items of a source row at once, and write several items of a target row at once:
 *
 *     source rows            registers after 2 passes of unpacking      target rows
 *
 *         a0 a1 a2 a3            a0 b0 c0 d0                                a0 b0 c0 d0
 *         b0 b1 b2 b3     ->     a1 b1 c1 d1                         ->     a1 b1 c1 d1
 *         c0 c1 c2 c3            a2 b2 c2 d2                                a2 b2 c2 d2
 *         d0 d1 d2 d3            a3 b3 c3 d3                                a3 b3 c3 d3
 *
 * Items of 4 bytes make squares of 4 x 4, items of 1 byte squares of 16 x 16. Tiles with fewer rows or columns than a
 * square have functions of their own, and without SSE2 items are moved one by one.
 */
#ifndef MESHCOMM_STRIDED_TILES_H
#define MESHCOMM_STRIDED_TILES_H

#include "types.h"

/* A tile: item (column, row) of the target is item (row, column) of the source. The items of a source row are
 * consecutive, and so are the items of a target row. The source rows are listed in a table, or lie at a stride.
 * Functions take a tile by value: behind a pointer, the compiler would have to read it again after each store. */
typedef struct {
    const char *source;
    const char *const *table; /* the addresses of the source rows, or NULL */
    Length source_stride;     /* bytes from one source row to the next, without a table */
    char *target;
    Length target_stride; /* bytes from one target row to the next */
    Length rows, columns; /* of the source */
    Length ahead;         /* bytes from a source row to the data that is read after this tile, or 0 for no prefetch */
} Tile;

STRIDED_INLINE const char *source_row(const Tile tile, Length row) {
    return tile.table ? tile.table[row] : tile.source + row * tile.source_stride;
}

/* Prefetch the lines that a source row has in the next tile. The copy of this tile has already read the first one, if
 * the tile ends within a line. */
STRIDED_INLINE void prefetch_next_tile(const Tile tile, const char *source, Length item) {
    Length i;
    if (tile.ahead)
        for (i = LINE - 1; i < tile.columns * item; i += LINE)
            STRIDED_PREFETCH_L2(source + tile.ahead + i);
}

/* Transpose a rectangle of a tile item by item. */
STRIDED_INLINE void turn_items(const Tile tile, Length item, Length row, Length rows, Length column, Length columns) {
    Length i, k;
    for (i = row; i < row + rows; i++) {
        const char *source = source_row(tile, i) + column * item;
        char *target = tile.target + column * tile.target_stride + i * item;
        prefetch_next_tile(tile, source, item);
        for (k = 0; k < columns; k++)
            memcpy(target + k * tile.target_stride, source + k * item, item);
    }
}

#if STRIDED_SIMD

STRIDED_INLINE __m128i low(Length item, __m128i a, __m128i b) {
    return item == 1   ? _mm_unpacklo_epi8(a, b)
           : item == 2 ? _mm_unpacklo_epi16(a, b)
           : item == 4 ? _mm_unpacklo_epi32(a, b)
                       : _mm_unpacklo_epi64(a, b);
}

STRIDED_INLINE __m128i high(Length item, __m128i a, __m128i b) {
    return item == 1   ? _mm_unpackhi_epi8(a, b)
           : item == 2 ? _mm_unpackhi_epi16(a, b)
           : item == 4 ? _mm_unpackhi_epi32(a, b)
                       : _mm_unpackhi_epi64(a, b);
}

/* Move items between registers. Number the items of *count* registers (a power of two) from 0 on. One pass of
 * unpacking moves each item to a new number: the old one in binary, rotated to the left by one bit. As many passes as
 * the number of a register has bits interleave the registers. As many passes as the number of an item within a
 * register has bits separate them again. If both are equal, that is the transpose of a square. */
STRIDED_INLINE void rotate(Length item, int count, int passes, __m128i *data) {
    __m128i next[16];
    int pass, i;
    for (pass = 0; pass < passes; pass++) {
        for (i = 0; i < count / 2; i++) {
            next[2 * i] = low(item, data[i], data[i + count / 2]);
            next[2 * i + 1] = high(item, data[i], data[i + count / 2]);
        }
        for (i = 0; i < count; i++)
            data[i] = next[i];
    }
}

STRIDED_INLINE int bits_of(Length n) { return n >= 16 ? 4 : n >= 8 ? 3 : n >= 4 ? 2 : n >= 2 ? 1 : 0; }

STRIDED_INLINE __m128i load(const char *source) { return _mm_loadu_si128((const __m128i *)source); }
STRIDED_INLINE void store(char *target, __m128i data) { _mm_storeu_si128((__m128i *)target, data); }

/* Transpose one square: *width* source rows from *column* on; write the first *columns* rows of the result. */
STRIDED_INLINE void turn_square(const Tile tile, Length item, const char *const *source, Length row, Length column,
                                int columns) {
    const int width = (int)(16 / item);
    char *target = tile.target + column * tile.target_stride + row * item;
    __m128i data[16];
    int i;
    for (i = 0; i < width; i++)
        data[i] = load(source[i] + column * item);
    rotate(item, width, bits_of(width), data);
    for (i = 0; i < columns; i++)
        store(target + i * tile.target_stride, data[i]);
}

/* Transpose in squares with as many rows as a register has items. The last squares overlap those before them. */
STRIDED_INLINE void turn_squares(const Tile tile, Length item) {
    const int width = (int)(16 / item);
    Length row, column;
    int i;
    if (tile.rows < width || tile.columns < width) {
        turn_items(tile, item, 0, tile.rows, 0, tile.columns);
        return;
    }
    for (row = 0; row < tile.rows; row += width) {
        const char *source[16];
        row = smaller(row, tile.rows - width);
        for (i = 0; i < width; i++)
            source[i] = source_row(tile, row + i);
        for (i = 0; i < width; i++)
            prefetch_next_tile(tile, source[i], item);
        for (column = 0; column < tile.columns - width; column += width)
            turn_square(tile, item, source, row, column, width);
        turn_square(tile, item, source, row, tile.columns - width, width);
    }
}

/* For a tile with fewer source rows than a register has items, and no gaps in the target. Each store writes too many
 * items; the next store overwrites the surplus. The last columns are moved item by item. */
STRIDED_INLINE void turn_narrow_target(const Tile tile, Length item) {
    const int width = (int)(16 / item);
    const Length last = tile.columns - width - 1 - width / tile.rows;
    const char *source[16];
    Length column;
    int i;
    for (i = 0; i < width; i++)
        source[i] = source_row(tile, smaller(i, tile.rows - 1));
    for (column = 0; column <= last; column += width)
        turn_square(tile, item, source, 0, column, width);
    turn_items(tile, item, 0, tile.rows, column, tile.columns - column);
}

/* For a tile with fewer source columns than a register has items. Each load reads past the row; the surplus is
 * dropped. The last rows are moved item by item, so that no load leaves the source. */
STRIDED_INLINE void turn_narrow_source(const Tile tile, Length item) {
    const int width = (int)(16 / item);
    const Length beyond = 16 - tile.columns * item, last = tile.rows - width - 1 - beyond / tile.source_stride;
    Length row;
    int i;
    for (row = 0; row <= last; row += width) {
        const char *source[16];
        for (i = 0; i < width; i++)
            source[i] = source_row(tile, row + i);
        turn_square(tile, item, source, row, 0, (int)tile.columns);
    }
    turn_items(tile, item, row, tile.rows - row, 0, tile.columns);
}

/* For 2, 4 or 8 source rows and no gaps in the target: interleave whole registers. */
STRIDED_INLINE void turn_few_rows(const Tile tile, Length item, int count) {
    const int width = (int)(16 / item);
    Length column, columns = tile.columns - tile.columns % width;
    const char *source[8];
    char *target = tile.target;
    int i;
    for (i = 0; i < count; i++)
        source[i] = source_row(tile, i);
    for (column = 0; column < columns; column += width, target += 16 * count) {
        __m128i data[16];
        for (i = 0; i < count; i++)
            data[i] = load(source[i] + column * item);
        rotate(item, count, bits_of(count), data);
        for (i = 0; i < count; i++)
            store(target + i * 16, data[i]);
    }
    turn_items(tile, item, 0, count, columns, tile.columns - columns);
}

/* For 2, 4 or 8 source columns and no gaps in the source: separate whole registers. */
STRIDED_INLINE void turn_few_columns(const Tile tile, Length item, int count) {
    const int width = (int)(16 / item);
    Length row, rows = tile.rows - tile.rows % width;
    const char *source = tile.source;
    int i;
    for (row = 0; row < rows; row += width, source += 16 * count) {
        __m128i data[16];
        for (i = 0; i < count; i++)
            data[i] = load(source + i * 16);
        rotate(item, count, bits_of(width), data);
        for (i = 0; i < count; i++)
            store(tile.target + i * tile.target_stride + row * item, data[i]);
    }
    turn_items(tile, item, rows, tile.rows - rows, 0, count);
}

STRIDED_INLINE int has_few_rows(const Tile tile, Length item, int count) {
    return tile.rows == count && tile.target_stride == count * item && count * item < 16;
}

STRIDED_INLINE int has_few_columns(const Tile tile, Length item, int count) {
    return tile.columns == count && !tile.table && tile.source_stride == count * item && count * item <= 16;
}

/* Pick the function for a tile. With a constant *item*, the compiler makes one version per size of item. */
STRIDED_INLINE void turn_items_of(const Tile tile, Length item) {
    if (has_few_rows(tile, item, 2))
        turn_few_rows(tile, item, 2);
    else if (has_few_rows(tile, item, 4))
        turn_few_rows(tile, item, 4);
    else if (has_few_rows(tile, item, 8))
        turn_few_rows(tile, item, 8);
    else if (has_few_columns(tile, item, 2))
        turn_few_columns(tile, item, 2);
    else if (has_few_columns(tile, item, 4))
        turn_few_columns(tile, item, 4);
    else if (has_few_columns(tile, item, 8))
        turn_few_columns(tile, item, 8);
    else if (tile.rows < 16 / item && tile.target_stride == tile.rows * item)
        turn_narrow_target(tile, item);
    else if (tile.columns < 16 / item && !tile.table && tile.source_stride >= tile.columns * item)
        turn_narrow_source(tile, item);
    else
        turn_squares(tile, item);
}

#else

STRIDED_INLINE void turn_items_of(const Tile tile, Length item) {
    turn_items(tile, item, 0, tile.rows, 0, tile.columns);
}

#endif

static void turn_tile(const Tile tile, Length item) {
    if (item == 1)
        turn_items_of(tile, 1);
    else if (item == 2)
        turn_items_of(tile, 2);
    else if (item == 4)
        turn_items_of(tile, 4);
    else if (item == 8)
        turn_items_of(tile, 8);
    else
        turn_items(tile, 16, 0, tile.rows, 0, tile.columns);
}

#endif
