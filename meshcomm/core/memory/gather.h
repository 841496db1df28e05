/* Rows gathered from several regions of memory. */

#include <stdint.h>
#include <string.h>

enum { ROWS_AHEAD = 24 }; /* rows at random row_numbers come from memory, not from a cache: ask for them early */

#define GATHER(SIZE)                                                                          \
    for (Py_ssize_t i = 0; i < count; i++, target += (SIZE)) {                                \
        if (i + ROWS_AHEAD < count)                                                           \
            __builtin_prefetch(sources[regions[i + ROWS_AHEAD]] + row_numbers[i + ROWS_AHEAD] * (SIZE)); \
        memcpy(target, sources[regions[i]] + row_numbers[i] * (SIZE), (size_t)(SIZE));             \
    }

/* Copy row row_numbers[i] of the region regions[i] to row i of the target. */
static void rows_run(
    const char **sources, const int32_t *regions, const Py_ssize_t *row_numbers, Py_ssize_t count, Py_ssize_t row,
    char *target)
{
    switch (row) { /* a constant size becomes a move or two */
    case 1: GATHER(1) break;
    case 2: GATHER(2) break;
    case 4: GATHER(4) break;
    case 8: GATHER(8) break;
    case 16: GATHER(16) break;
    case 32: GATHER(32) break;
    case 64: GATHER(64) break;
    default: GATHER(row) break;
    }
}

/* Write who owns the element at each index, and its row there; return the first index out of bounds, or -1.

   The search keeps no branch that a processor could guess wrongly. */
static Py_ssize_t rows_find(
    const int64_t *indices, Py_ssize_t count, const int64_t *boundaries, Py_ssize_t blocks, const int32_t *owners,
    int32_t *regions, Py_ssize_t *row_numbers)
{
    const int64_t length = boundaries[blocks];
    for (Py_ssize_t i = 0; i < count; i++) {
        const int64_t index = indices[i] + (indices[i] < 0 ? length : 0);
        if (index < 0 || index >= length)
            return i;
        const int64_t *first = boundaries;
        for (Py_ssize_t left = blocks; left > 1;) { /* the last block that begins at the index or before */
            const Py_ssize_t half = left / 2;
            first += first[half] <= index ? half : 0;
            left -= half;
        }
        regions[i] = owners[first - boundaries];
        row_numbers[i] = (Py_ssize_t)(index - *first);
    }
    return -1;
}
