/* The values that the strategies share: a loop, a box, a list of boxes.
 *
 * A box (MPI: subarray) is a set of bytes at two locations, the source and the target. It is a nest of loops around
 * a run. A run is a number of bytes that are consecutive on both sides:
 *
 *     box with run 4, loops (extent 2, target stride 16) and (extent 3, target stride 4):
 *
 *         for i in 0, 1:                     target   0   4   8  12  16  20  24
 *             for j in 0, 1, 2:                      |i=0        |   |i=1        |
 *                 copy 4 bytes                       |j=0|j=1|j=2|   |j=0|j=1|j=2|
 *
 * Boxes that share their outer loops can form a batch: one pass over these loops copies all boxes. The first box of a
 * batch says how many members the batch has; they are the boxes that follow it in the list.
 */
#ifndef MESHCOMM_STRIDED_TYPES_H
#define MESHCOMM_STRIDED_TYPES_H

#include "tuning.h"

typedef struct {
    Length extent, source, target; /* strides in bytes */
} Loop;

/* The strategy by which a batch is copied. */
typedef enum {
    RUNS,      /* each run on its own: rows.h */
    ROWS,      /* many short runs at a time: rows.h */
    TRANSPOSE, /* one box: its last loop follows the target, the loop before that follows the source: transpose.h */
    JOIN,      /* items of several sources become neighbours in one target: join.h */
    SPLIT      /* neighbours in one source go to several targets: split.h */
} Kind;

typedef struct {
    Length source_region, target_region; /* the numbers of the two memory regions */
    Length source, target;               /* the byte in each region at which the first item begins */
    Length run;                          /* bytes that are consecutive on both sides */
    Length loops;
    Loop *loop; /* the outermost loop first */
    /* copies_plan sets these in the first box of a batch: */
    Length members; /* the number of boxes in the batch; 0 in all boxes but the first */
    Length shared;  /* the number of outermost loops that all members share */
    Kind kind;
    int dense; /* whether one iteration of the innermost shared loop fills all its bytes in the target */
} Box;

typedef struct {
    Box *box;
    Length count;
    Length at_once; /* the number of processes that share a cache and run such lists at the same time */
    int streams;    /* whether the list is written past the caches */
} Copies;

/* Whether a run is an item that registers can move. */
static int is_item(Length run) { return run == 1 || run == 2 || run == 4 || run == 8 || run == 16; }

#endif
