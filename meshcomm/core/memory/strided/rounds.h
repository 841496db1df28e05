/* Copy one round of a packed box: a range of its packed bytes.
 *
 * A box whose packed form is too large for the scratch memory is packed in several rounds. A round is a range of
 * packed bytes that need not begin or end with a row. So it is a few pieces: the end of one iteration, some whole
 * iterations, the beginning of another one:
 *
 *     packed bytes   |row 0   |row 1   |row 2   |row 3   |row 4   |
 *     round               [begin                     end)
 *     pieces              |end |  rows 1 and 2   |begin |
 *                          of 0                   of 3
 *
 * The end and the beginning are ranges of the loops inside, so cut_range calls itself for them. Pieces are collected
 * in a list, which is copied when it is full.
 */
#ifndef MESHCOMM_STRIDED_ROUNDS_H
#define MESHCOMM_STRIDED_ROUNDS_H

#include "run.h"

enum {
    MAX_AXES = 64,         /* axes of a box: as many as NumPy allows */
    MAX_PIECES = 64,       /* pieces of a list before it is copied */
    MAX_PIECE_LOOPS = 512  /* loops of all pieces of a list together */
};

/* A list that collects pieces of boxes, and is copied when it is full. */
typedef struct {
    Box box[MAX_PIECES];
    Loop loop[MAX_PIECE_LOOPS];
    Length count, loops;
    int unpacks, streams;
    char *const *regions;
    char *packed;
} Pieces;

/* Copy the pieces, and empty the list. */
static void copy_pieces(Pieces *pieces) {
    Copies list = {pieces->box, pieces->count, 1, pieces->streams};
    copies_plan(&list);
    if (pieces->unpacks)
        copies_run(&list, (const char *const *)&pieces->packed, pieces->regions);
    else
        copies_run(&list, (const char *const *)pieces->regions, &pieces->packed);
    pieces->count = pieces->loops = 0;
}

/* Add *extent* iterations of a loop of a packed box, with all loops inside of it. */
static void add_piece(Pieces *pieces, const Box *box, Length level, Length extent, Length source, Length packed,
                      Length run) {
    Length loops = box->loops - level, i;
    Box *piece;
    if (pieces->count == MAX_PIECES || pieces->loops + loops > MAX_PIECE_LOOPS)
        copy_pieces(pieces);
    piece = pieces->box + pieces->count++;
    piece->source_region = pieces->unpacks ? 0 : box->source_region;
    piece->target_region = pieces->unpacks ? box->source_region : 0;
    piece->source = pieces->unpacks ? packed : source;
    piece->target = pieces->unpacks ? source : packed;
    piece->run = run, piece->loops = loops, piece->loop = pieces->loop + pieces->loops;
    pieces->loops += loops;
    for (i = 0; i < loops; i++) {
        Loop loop = box->loop[level + i];
        piece->loop[i].extent = i ? loop.extent : extent;
        piece->loop[i].source = pieces->unpacks ? loop.target : loop.source;
        piece->loop[i].target = pieces->unpacks ? loop.source : loop.target;
    }
}

/* Add the bytes from *begin* to *end* of the packed form of one iteration of loop *level* - 1. *source* is where that
 * iteration begins in the region, *packed* where byte *begin* goes in the buffer. */
static void cut_range(const Box *box, Length level, Length source, Length begin, Length end, Length packed,
                      Pieces *pieces) {
    Length whole, first, last;
    if (begin >= end)
        return;
    if (level == box->loops) {
        add_piece(pieces, box, level, 1, source + begin, packed, end - begin);
        return;
    }
    whole = box->loop[level].target;
    first = begin / whole + (begin % whole != 0), last = end / whole;
    if (first > last) {
        source += last * box->loop[level].source;
        cut_range(box, level + 1, source, begin - last * whole, end - last * whole, packed, pieces);
        return;
    }
    if (begin < first * whole)
        cut_range(box, level + 1, source + (first - 1) * box->loop[level].source, begin - (first - 1) * whole, whole,
                  packed, pieces);
    packed += first * whole - begin;
    if (first < last)
        add_piece(pieces, box, level, last - first, source + first * box->loop[level].source, packed, box->run);
    packed += (last - first) * whole;
    if (last * whole < end)
        cut_range(box, level + 1, source + last * box->loop[level].source, 0, end - last * whole, packed, pieces);
}

#endif
