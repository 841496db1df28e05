/* Make the loops of one box few and its runs long.
 *
 * Three steps: drop loops of one iteration; put the loop with the longest step in the target outside, so that the
 * target is written forwards; merge a loop into the run, or into the next loop, if it only continues it:
 *
 *     extents and strides (source, target) of 4 x 3 items of 8 bytes, out of rows of 5 items:
 *
 *         loop 4   (40, 24)                loop 4   (40, 24)
 *           loop 1   (96, 96)    drop  ->    loop 3   (8, 8)    merge  ->  loop 4   (40, 24)
 *             loop 3   (8, 8)                  run 8                         run 24
 *               run 8
 *
 *     source  |aaabb|...|...   the items b are not copied, so the loop over 4 rows remains;
 *     target  |aaa|aaa|aaa|    with rows of 3 items in the source too, the box would be one run of 96 bytes
 */
#ifndef MESHCOMM_STRIDED_LOOPS_H
#define MESHCOMM_STRIDED_LOOPS_H

#include "types.h"

static void swap_loops(Loop *a, Loop *b) {
    Loop kept = *a;
    *a = *b;
    *b = kept;
}

/* Drop loops of one iteration: their strides have no meaning. */
static void drop_single_iterations(Box *box) {
    Length axis, kept = 0;
    for (axis = 0; axis < box->loops; axis++)
        if (box->loop[axis].extent != 1)
            box->loop[kept++] = box->loop[axis];
    box->loops = kept;
}

/* Turn loops that go backwards in the target, and sort the loops by their step in the target, longest first. */
static void order_loops(Box *box) {
    Length axis, i;
    for (axis = 0; axis < box->loops; axis++) {
        Loop *loop = box->loop + axis;
        if (loop->target < 0) {
            box->source += (loop->extent - 1) * loop->source;
            box->target += (loop->extent - 1) * loop->target;
            loop->source = -loop->source;
            loop->target = -loop->target;
        }
        for (i = axis; i > 0 && box->loop[i].target > box->loop[i - 1].target; i--)
            swap_loops(box->loop + i, box->loop + i - 1);
    }
}

/* Whether a stride is *extent* times the stride *inner*. Divides, because the product might overflow. */
static int continues(Length stride, Length inner, Length extent) {
    return stride / extent == inner && stride % extent == 0;
}

/* Merge loops, from the innermost one outwards: into the run, or else into the loop inside of it, if the loop
 * continues it on both sides. */
static void merge_loops(Box *box) {
    Length axis, free = box->loops;
    for (axis = box->loops - 1; axis >= 0; axis--) {
        Loop here = box->loop[axis], *inner = box->loop + free;
        if (free == box->loops && here.source == box->run && here.target == box->run)
            box->run *= here.extent;
        else if (free < box->loops && continues(here.source, inner->source, inner->extent) &&
                 continues(here.target, inner->target, inner->extent))
            inner->extent *= here.extent;
        else
            box->loop[--free] = here;
    }
    box->loop += free;
    box->loops -= free;
}

#endif
