/* Find boxes to copy together, and choose the strategy of each batch.
 *
 * Columns of several ranks lie between each other in the target. Copied box by box, each cache line of the target
 * would be written in fragments, once per box. As one batch, the shared loop visits all boxes in each iteration, and
 * the target is written in order:
 *
 *     target, three boxes a b c in rows:      box by box           as a batch
 *
 *         |a a|b b b|c|                       a a . . . .          for row:
 *         |a a|b b b|c|                       a a . . . .              for box in a, b, c:
 *         |a a|b b b|c|                       a a . . . .                  copy its run of this row
 *                                             then b, then c
 *
 * The same holds for boxes between each other in the source. copies_plan tries the target first, and takes the source
 * if that gives fewer batches. In the functions below, *gathers* is 1 for the target and 0 for the source.
 */
#ifndef MESHCOMM_STRIDED_PLAN_H
#define MESHCOMM_STRIDED_PLAN_H

#include "loops.h"

/* Return the length in bytes of the range that the loops from number *from* on touch on one side. */
static Length reach(const Box *box, Length from, int gathers) {
    Length bytes = box->run, i;
    for (i = from; i < box->loops; i++)
        bytes += (box->loop[i].extent - 1) * (gathers ? box->loop[i].target : box->loop[i].source);
    return bytes;
}

/* Whether all boxes from *first* to *last* have the same *shared* outermost loops on one side, and one iteration of
 * the innermost of these loops, over all boxes, stays within its stride. Then an iteration that visits one box after
 * the other goes through that side in order. */
static int interleaved(const Box *first, const Box *last, Length shared, int gathers) {
    const Loop *a = first->loop, *b = last->loop;
    Length i, stride = 0, low, high;
    for (i = 0; i < shared; i++) {
        stride = gathers ? a[i].target : a[i].source;
        if (a[i].extent != b[i].extent || stride != (gathers ? b[i].target : b[i].source))
            return 0;
    }
    for (i = shared; i < last->loops; i++)
        if (!gathers && b[i].source < 0)
            return 0;
    low = gathers ? first->target : first->source;
    high = (gathers ? last->target : last->source) + reach(last, shared, gathers);
    return high - low <= stride;
}

static Length max_shared(const Box *first, const Box *last, int gathers) {
    Length shared = smaller(first->loops, last->loops);
    while (shared && !interleaved(first, last, shared, gathers))
        shared--;
    return shared;
}

static int by_target(const void *a, const void *b) {
    const Box *x = a, *y = b;
    if (x->target_region != y->target_region)
        return x->target_region < y->target_region ? -1 : 1;
    return (x->target > y->target) - (x->target < y->target);
}

static int by_source(const void *a, const void *b) {
    const Box *x = a, *y = b;
    if (x->source_region != y->source_region)
        return x->source_region < y->source_region ? -1 : 1;
    return (x->source > y->source) - (x->source < y->source);
}

/* Sort the boxes by their location on one side, and set `members` and `shared` of each batch. Return the number of
 * batches. */
static Length find_batches(Box *box, Length count, int gathers) {
    Length batches = 0, i, shared;
    Box *first = box;
    qsort(box, count, sizeof(Box), gathers ? by_target : by_source);
    for (i = 0; i < count; i++) {
        int same = i > 0 && first->members < MAX_MEMBERS &&
                   (gathers ? box[i].target_region == first->target_region
                            : box[i].source_region == first->source_region);
        shared = !same ? 0 : first->members == 1 ? max_shared(first, box + i, gathers) : first->shared;
        if (shared && box[i].loops >= shared && interleaved(first, box + i, shared, gathers)) {
            first->shared = shared;
            first->members++;
            box[i].members = 0;
        } else {
            first = box + i;
            first->members = 1;
            first->shared = first->loops;
            batches++;
        }
    }
    return batches;
}

/* Whether the members of a batch are items to join or split: neighbours on the side that they share, and consecutive
 * in their last loop on the other side. False as well if the registers would not make it faster. */
static int are_items(const Box *box, int gathers, int streams) {
    const Length run = box->run, last = box->shared - 1, members = box->members;
    Length i;
    for (i = 0; i < members; i++) {
        if (box[i].run != run || box[i].loops != box->shared)
            return 0;
        if ((gathers ? box[i].loop[last].source : box[i].loop[last].target) != run)
            return 0;
        if ((gathers ? box[i].target - box->target : box[i].source - box->source) != i * run)
            return 0;
    }
    if (!gathers && !streams && run >= 8 && members < 4)
        return 0;
    return is_item(run) && members * run != 3;
}

/* Find the loop with the shortest step in the source. If it is not the last loop, put it just before the last one
 * and return 1: the box is a transpose. */
static int transposes(Box *box) {
    Length last = box->loops - 1, best = last, i;
    for (i = 0; i < last; i++)
        if (box->loop[i].source && magnitude(box->loop[i].source) < magnitude(box->loop[best].source))
            best = i;
    if (best == last)
        return 0;
    for (i = best; i < last - 1; i++)
        swap_loops(box->loop + i, box->loop + i + 1);
    return 1;
}

/* Choose the strategy of a batch. */
static void choose(Box *box, int gathers, int streams) {
    Length i, bytes = 0, shortest = box->run;
    int rows = 1;                                /* whether the members have only shared loops */
    int dense = gathers || box->members == 1;    /* whether they fill the target */
    for (i = 0; i < box->members; i++) {
        rows = rows && box[i].loops == box->shared;
        dense = dense && box[i].target - box->target == bytes;
        shortest = smaller(shortest, box[i].run);
        bytes += box[i].run;
    }
    box->dense = dense && rows && box->shared > 0 && box->loop[box->shared - 1].target == bytes;
    if (!rows || box->shared == 0 || shortest >= LONG_RUN)
        box->kind = RUNS;
    else if (box->members > 1 && are_items(box, gathers, streams))
        box->kind = gathers ? JOIN : SPLIT;
    else if (box->members == 1 && shortest < SHORT_RUN && transposes(box))
        box->kind = TRANSPOSE;
    else
        box->kind = ROWS;
}

/* Decide how a list is copied: order and merge its loops, find batches, choose the strategy of each. */
static void copies_plan(Copies *list) {
    Length i;
    int gathers = 1;
    double bytes = 0; /* not an integer: a box with a stride of 0 may be larger than all memory */
    for (i = 0; i < list->count; i++) {
        double size;
        Length axis;
        drop_single_iterations(list->box + i);
        order_loops(list->box + i);
        merge_loops(list->box + i);
        size = (double)list->box[i].run;
        for (axis = 0; axis < list->box[i].loops; axis++)
            size *= (double)list->box[i].loop[axis].extent;
        bytes += size;
    }
    list->streams = list->streams || bytes * (double)list->at_once >= MESHCOMM_STREAM_FROM;
    if (list->count > 1) {
        Length gathered = find_batches(list->box, list->count, 1);
        if (gathered > 1 && gathered > find_batches(list->box, list->count, 0))
            gathers = 0;
        else if (gathered > 1)
            find_batches(list->box, list->count, 1);
    } else if (list->count == 1) {
        find_batches(list->box, 1, 1);
    }
    for (i = 0; i < list->count; i += list->box[i].members)
        choose(list->box + i, gathers, list->streams);
}

#endif
