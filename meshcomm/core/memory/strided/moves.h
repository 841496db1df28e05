/* Copy rows of few bytes.
 *
 * A memcpy of a length that the compiler knows becomes one or two instructions. So one test of the length picks the
 * loop, and the loop has no call in it. Two moves that overlap copy any length from one to two times their own:
 *
 *     run of 11 bytes as two moves of 8:
 *
 *         byte       0 1 2 3 4 5 6 7 8 9 10
 *         move 1    |- - - - - - - -|
 *         move 2          |- - - - - - - -|
 *
 *     rows       source  |run|.....|run|.....|run|.....      step from_stride
 *                target  |run|..|run|..|run|..               step stride
 */
#ifndef MESHCOMM_STRIDED_MOVES_H
#define MESHCOMM_STRIDED_MOVES_H

#include "types.h"

#define MOVE(size) memcpy(target, source, size)
#define MOVE_ENDS(size) (memcpy(target, source, size), memcpy(target + run - (size), source + run - (size), size))
#define NEXT_ROW (source += from_stride, target += stride)
#define EACH_ROW(move)                                \
    do {                                              \
        for (; rows >= 4; rows -= 4) {                \
            move, NEXT_ROW, move, NEXT_ROW;           \
            move, NEXT_ROW, move, NEXT_ROW;           \
        }                                             \
        for (; rows > 0; rows--, NEXT_ROW) {          \
            move;                                     \
        }                                             \
    } while (0)

/* Move more than 64 bytes, 32 at a time; the last move may overlap the one before it. */
STRIDED_INLINE void move_middle(char *target, const char *source, Length run) {
    Length i;
    for (i = 0; i < run - 32; i += 32)
        memcpy(target + i, source + i, 32);
    memcpy(target + run - 32, source + run - 32, 32);
}

/* Copy rows of *run* bytes: one loop per length. */
static void copy_rows(char *target, Length stride, const char *source, Length from_stride, Length run, Length rows) {
    if (run == 4)
        EACH_ROW(MOVE(4));
    else if (run == 8)
        EACH_ROW(MOVE(8));
    else if (run == 1)
        EACH_ROW(MOVE(1));
    else if (run == 2)
        EACH_ROW(MOVE(2));
    else if (run == 16)
        EACH_ROW(MOVE(16));
    else if (run < 4)
        EACH_ROW(MOVE_ENDS(2));
    else if (run < 8)
        EACH_ROW(MOVE_ENDS(4));
    else if (run < 16)
        EACH_ROW(MOVE_ENDS(8));
    else if (run <= 32)
        EACH_ROW(MOVE_ENDS(16));
    else if (run <= 64)
        EACH_ROW(MOVE_ENDS(32));
    else if (run < SHORT_RUN)
        EACH_ROW(move_middle(target, source, run));
    else
        EACH_ROW(memcpy(target, source, run));
}

/* Copy rows of few bytes, and prefetch later rows where the processor does not do it by itself. It prefetches rows
 * that are next to each other. It does not prefetch rows with unused lines between them, and it prefetches too late
 * if the rows leave gaps within each line. */
static void copy_rows_prefetching(char *target, Length stride, const char *source, Length from_stride, Length run,
                                  Length rows) {
    const Length apart = magnitude(from_stride), lines = (run + LINE + LINE / 2) & -(Length)LINE;
    const Length ahead = (L2_AHEAD / lines + 1) * from_stride;
    const int gaps = apart > run && apart < LINE, fetches = gaps || apart >= lines + LINE;
    const Length step = fetches ? 1024 / (gaps ? apart : lines) + 1 : rows;
    Length i, k, some;
    for (; rows > 0; rows -= some, source += some * from_stride, target += some * stride) {
        some = smaller(rows, step);
        if (gaps)
            for (i = 0; i < some * apart; i += LINE)
                STRIDED_PREFETCH_L1(source + (from_stride < 0 ? -L1_AHEAD - i : L1_AHEAD + i));
        else if (fetches)
            for (i = 0; i < lines; i += LINE)
                for (k = 0; k < some; k++)
                    STRIDED_PREFETCH_L2(source + ahead + i + k * from_stride);
        copy_rows(target, stride, source, from_stride, run, some);
    }
}

#endif
