/* Copies of many boxes of bytes between memory regions. This header includes all others of its folder.
 *
 * copies_plan decides once how to copy a list. copies_run copies it, any number of times. cut_range and copy_pieces
 * copy one round of packed boxes. The caller has checked that each box lies in its region: nothing is checked here.
 * Nothing here knows Python, dtypes or MPI.
 *
 *     rounds.h                              ranges of packed boxes
 *        |
 *     run.h                                 goes through the batches
 *        |
 *        +-- plan.h -- loops.h              copies_plan: loops, batches, the strategy of each
 *        +-- rows.h                         strategies RUNS and ROWS
 *        +-- transpose.h                    strategy TRANSPOSE
 *        +-- join.h, split.h                strategies JOIN and SPLIT
 *               |
 *               tiles.h  writer.h  stream.h  moves.h      how bytes move: registers, buffer, past the caches, inline
 *                  types.h  tuning.h                      values and thresholds
 */
#ifndef MESHCOMM_STRIDED_H
#define MESHCOMM_STRIDED_H

#include "rounds.h"

#endif
