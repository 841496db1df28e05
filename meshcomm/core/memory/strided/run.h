/* Copy a list that copies_plan has prepared.
 *
 *     for batch in list:
 *         for i0 in the first shared loop:                   copy_shared calls itself
 *             for i1 in the second shared loop:              once per shared loop
 *                 ...
 *                 one call of the strategy of the batch:     copy_runs, copy_rows_of_batch, copy_transposed,
 *                     it has the innermost shared loop       copy_joined or copy_split
 *                     (a transpose has the innermost two)
 *         write what is left in the buffer
 *     make streaming stores visible
 */
#ifndef MESHCOMM_STRIDED_RUN_H
#define MESHCOMM_STRIDED_RUN_H

#include "plan.h"
#include "rows.h"
#include "transpose.h"
#include "join.h"
#include "split.h"

/* Go through the shared loops from number *level* on, and leave the innermost *left* loops to the strategy. The
 * addresses of all members move together. */
static void copy_shared(Batch *batch, Length level, Length left) {
    const Box *box = batch->box;
    Length i, m;
    if (box->loops && level < box->shared - left) {
        for (i = 0; i < box->loop[level].extent; i++) {
            copy_shared(batch, level + 1, left);
            for (m = 0; m < box->members; m++) {
                batch->source[m] += box[m].loop[level].source;
                batch->target[m] += box[m].loop[level].target;
            }
        }
        for (m = 0; m < box->members; m++) {
            batch->source[m] -= box->loop[level].extent * box[m].loop[level].source;
            batch->target[m] -= box->loop[level].extent * box[m].loop[level].target;
        }
    } else if (box->kind == RUNS) {
        copy_runs(batch);
    } else if (box->kind == ROWS) {
        copy_rows_of_batch(batch);
    } else if (box->kind == TRANSPOSE) {
        copy_transposed(batch);
    } else if (box->kind == JOIN) {
        copy_joined(batch);
    } else {
        copy_split(batch);
    }
}

/* Copy all boxes of a list. *sources* and *targets* are the addresses of the memory regions. */
static void copies_run(const Copies *list, const char *const *sources, char *const *targets) {
    char memory[BUFFER + LINE * (MAX_MEMBERS + 1)];
    Batch batch;
    Length i, m;
    memset(&batch.writer, 0, sizeof(Writer));
    batch.writer.buffer = memory + (-(uintptr_t)memory & (LINE - 1));
    batch.writer.streams = batch.streams = list->streams;
    for (i = 0; i < list->count; i += batch.box->members) {
        batch.box = list->box + i;
        for (m = 0; m < batch.box->members; m++) {
            batch.source[m] = sources[batch.box[m].source_region] + batch.box[m].source;
            batch.target[m] = targets[batch.box[m].target_region] + batch.box[m].target;
        }
        copy_shared(&batch, 0, batch.box->kind == TRANSPOSE ? 2 : 1);
        if (batch.writer.filled)
            write_out(&batch.writer);
    }
#if STRIDED_SIMD
    if (list->streams)
        _mm_sfence(); /* streaming stores are visible before any later store that announces them */
#endif
}

#endif
