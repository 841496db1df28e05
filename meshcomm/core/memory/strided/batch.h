/* The state of the copy of one batch.
 *
 * The loops that all members share move the addresses of all members together:
 *
 *     members     a             b                 c
 *     source[]    |a|. . . .    . |b b|. . .      . . . |c|
 *     target[]    |a|. . . .    . |b b|. . .      . . . |c|
 *                  next iteration: each address moves by its own stride
 */
#ifndef MESHCOMM_STRIDED_BATCH_H
#define MESHCOMM_STRIDED_BATCH_H

#include "types.h"
#include "writer.h"

typedef struct {
    const Box *box;                  /* the first box of the batch */
    const char *source[MAX_MEMBERS]; /* of each member: where its current iteration begins */
    char *target[MAX_MEMBERS];
    Writer writer;
    int streams; /* whether to write past the caches */
} Batch;

#endif
