/* Copy the runs of a batch: long runs one by one, short runs many at a time.
 *
 * RUNS, for runs of LONG_RUN bytes and more, and for members that have loops inside the shared ones:
 *
 *     for i in the innermost shared loop:
 *         for member in batch:
 *             copy its loops inside i, run by run
 *
 * ROWS, for short runs: take as many iterations as fill one buffer, then go from member to member. The source lines
 * that one member has brought to the cache are still there for the next member:
 *
 *     target      |a|b b|c|a|b b|c|a|b b|c| ...         step iterations = BUFFER / bytes of one iteration
 *
 *     for i in the innermost shared loop, in steps of `step`:
 *         all runs of a, then all of b, then all of c   to the target; if the list streams: to the buffer of the
 *                                                       writer, which then goes past the caches to the target
 */
#ifndef MESHCOMM_STRIDED_ROWS_H
#define MESHCOMM_STRIDED_ROWS_H

#include "batch.h"
#include "moves.h"

/* Copy rows without the buffer of the writer. */
static void copy_unbuffered(char *target, Length stride, const char *source, Length from_stride, Length run,
                            Length rows, int streams) {
    if (run < SHORT_RUN || !streams)
        (streams ? copy_rows_prefetching : copy_rows)(target, stride, source, from_stride, run, rows);
    else
        for (; rows > 0; rows--, NEXT_ROW) {
            prefetch_ends(target + stride, run);
            stream_run(target, source, run, from_stride);
        }
}

/* Copy the loops of one box from number *from* on, in order. */
static void copy_loops(const char *source, char *target, const Box *box, Length from, int streams) {
    const Loop *loop = box->loop + from;
    Length i;
    if (from == box->loops) {
        copy_run(target, source, box->run, box->loops ? loop[-1].source : box->run, streams);
    } else if (from < box->loops - 1) {
        for (i = 0; i < loop->extent; i++)
            copy_loops(source + i * loop->source, target + i * loop->target, box, from + 1, streams);
    } else {
        copy_unbuffered(target, loop->target, source, loop->source, box->run, loop->extent, streams);
    }
}

/* Copy each run on its own: in each iteration of the innermost shared loop, one member after the other. */
static void copy_runs(Batch *batch) {
    const Box *box = batch->box;
    const Length last = box->shared - 1;
    Length i, m;
    if (box->shared == 0) {
        copy_loops(batch->source[0], batch->target[0], box, 0, batch->streams);
        return;
    }
    for (i = 0; i < box->loop[last].extent; i++)
        for (m = 0; m < box->members; m++) {
            const Loop *loop = box[m].loop + last;
            copy_loops(batch->source[m] + i * loop->source, batch->target[m] + i * loop->target, box + m, box->shared,
                       batch->streams);
        }
}

/* Copy short runs, many iterations at a time. */
static void copy_rows_of_batch(Batch *batch) {
    const Box *box = batch->box;
    Length last = box->shared - 1, extent = box->loop[last].extent, bytes = 0, step, i, m, rows;
    for (m = 0; m < box->members; m++)
        bytes += box[m].run;
    step = bytes < BUFFER ? BUFFER / bytes : 1;
    for (i = 0; i < extent; i += step) {
        char *out = NULL;
        rows = smaller(step, extent - i);
        batch->writer.next_count = 0;
        for (m = 0; m < box->members && box->dense; m++) {
            const Loop *loop = box[m].loop + last;
            if (magnitude(loop->source) <= box[m].run + LINE)
                batch->writer.next[batch->writer.next_count++] = batch->source[m] + i * loop->source;
        }
        if (batch->streams && box->dense && bytes > 16 && bytes <= BUFFER)
            out = reserve(&batch->writer, batch->target[0] + i * bytes, rows * bytes);
        for (m = 0; m < box->members; m++) {
            const Loop *loop = box[m].loop + last;
            const char *source = batch->source[m] + i * loop->source;
            char *target = batch->target[m] + i * loop->target;
            if (out) {
                copy_rows_prefetching(out + (box[m].target - box->target), bytes, source, loop->source, box[m].run,
                                      rows);
            } else if (batch->streams && loop->target == box[m].run && box[m].run > 16 &&
                       rows * box[m].run <= BUFFER) {
                char *own;
                if (magnitude(loop->source) <= bytes + LINE) { /* members lie between each other in the source */
                    batch->writer.next_count = 1;
                    batch->writer.next[0] = source + rows * loop->source * (m + box->members) / box->members;
                }
                own = reserve(&batch->writer, target, rows * box[m].run);
                copy_rows_prefetching(own, box[m].run, source, loop->source, box[m].run, rows);
            } else {
                copy_unbuffered(target, loop->target, source, loop->source, box[m].run, rows, batch->streams);
            }
        }
    }
}

#endif
