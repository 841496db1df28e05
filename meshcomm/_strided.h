/* Lists of strided copies: boxes of bytes from some regions of memory into others.
 *
 * `copies_plan` decides once how a list is best run, `copies_run` runs it. No bounds are checked here: whoever fills
 * in the boxes has checked them. Nothing here knows of Python, of dtypes or of MPI.
 *
 * What costs time is memory: each cache line should be read once and written once, without being read first. So
 *   - runs of many bytes are copied with stores that go past the caches, if the list is larger than they are;
 *   - runs of few bytes are put together in a small buffer in the first-level cache, which is then written at once.
 *     Boxes whose runs lie between those of others, such as the columns of several ranks, are put together row by row;
 *   - a transpose is cut into tiles of which both sides fit into the first-level cache.
 */
#ifndef MESHCOMM_STRIDED_H
#define MESHCOMM_STRIDED_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Without SSE2 the same is done in plain C. MESHCOMM_NO_SIMD asks for that: a test compares the two. */
#if (defined(__SSE2__) || defined(_M_X64)) && !defined(MESHCOMM_NO_SIMD)
#include <emmintrin.h>
#define STRIDED_SIMD 1
#else
#define STRIDED_SIMD 0
#endif

#if defined(__GNUC__)
#define STRIDED_INLINE static inline __attribute__((always_inline))
#define STRIDED_PREFETCH(address) __builtin_prefetch(address)
#define STRIDED_PREFETCH_FAR(address) __builtin_prefetch(address, 0, 2)
#else
#define STRIDED_INLINE static inline
#define STRIDED_PREFETCH(address) ((void)0)
#define STRIDED_PREFETCH_FAR(address) ((void)0)
#endif

enum {
    LINE = 64,             /* bytes of a cache line */
    TILE = 16 * 1024,      /* bytes that are put together before they are written: a part of a first-level cache */
    SHORT_RUN = 256,       /* from so many bytes on a run is worth a call, and may come from anywhere */
    LONG_RUN = 2048,       /* from so many bytes on a run is copied on its own */
    NEAR = 4 * 1024,       /* so many bytes ahead what is read is fetched to the first-level cache */
    FAR = 16 * 1024,       /* and so many ahead to the second-level one: few lines can be on their way to the first */
    MOST_MEMBERS = 64      /* boxes that are run together */
};

/* From so many bytes on, of all processes at once, a list is written past the caches. Measured: up to 8 MiB that is slower, the more so if
 * what was written is read next; from 32 MiB on it is faster; between them it depends. A test has all lists
 * written so. */
#ifndef MESHCOMM_STREAM_FROM
#define MESHCOMM_STREAM_FROM (16 << 20)
#endif

typedef ptrdiff_t Length;

typedef struct {
    Length extent, source, target; /* strides of both sides, in bytes */
} Loop;

/* How the boxes of a group are copied. */
typedef enum {
    RUNS,      /* each run on its own */
    ROWS,      /* many short runs at a time */
    TRANSPOSE, /* one box: its last loop follows the target, the one before the source */
    JOIN,      /* items of several sources, next to each other in the target */
    SPLIT      /* items next to each other in the source, to several targets */
} Kind;

typedef struct {
    Length source_region, target_region, source, target; /* where its first item is */
    Length run;                                          /* consecutive bytes on both sides */
    Length loops;
    Loop *loop; /* outermost first */
    /* Set by copies_plan, in the first box of a group: */
    Length members; /* how many boxes, from this one on, are run together; 0 in the others */
    Length shared;  /* how many of their outermost loops they share */
    Kind kind;
    int dense; /* one iteration of the innermost shared loop fills all its bytes in the target */
} Box;

typedef struct {
    Box *box;
    Length count;
    Length at_once; /* processes that share a cache and run such lists at the same time */
    int streams;    /* is written past the caches */
} Copies;

STRIDED_INLINE Length least(Length a, Length b) { return a < b ? a : b; }
STRIDED_INLINE Length magnitude(Length stride) { return stride < 0 ? -stride : stride; }

/* -- Plans -------------------------------------------------------------------------------------------------------- */

static void swap_loops(Loop *a, Loop *b) {
    Loop kept = *a;
    *a = *b;
    *b = kept;
}

/* Loops of one iteration say nothing; their strides may be anything. */
static void drop_single_iterations(Box *box) {
    Length axis, kept = 0;
    for (axis = 0; axis < box->loops; axis++)
        if (box->loop[axis].extent != 1)
            box->loop[kept++] = box->loop[axis];
    box->loops = kept;
}

/* What is written to should be written in order: forwards, and the loops with the longest steps outside. */
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

/* Whether a stride is `extent` times another one; the product might overflow. */
static int continues(Length stride, Length inner, Length extent) {
    return stride / extent == inner && stride % extent == 0;
}

/* The fewest loops over the longest runs: a loop that continues the run on both sides joins it, one that continues the
 * next loop on both sides joins that. */
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

/* Bytes from the first one to after the last one that loops inside of `from` reach, on one side. */
static Length reach(const Box *box, Length from, int gathers) {
    Length bytes = box->run, i;
    for (i = from; i < box->loops; i++)
        bytes += (box->loop[i].extent - 1) * (gathers ? box->loop[i].target : box->loop[i].source);
    return bytes;
}

/* Whether all from `first` to `last` share so many outermost loops, and lie between each other in the innermost of
 * these: then one iteration of it after the other, each over all boxes, goes through that side in order. */
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

static Length most_shared(const Box *first, const Box *last, int gathers) {
    Length shared = least(first->loops, last->loops);
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

/* Groups of boxes between each other in the target (or, with gathers 0, in the source); returns how many groups. */
static Length find_groups(Box *box, Length count, int gathers) {
    Length groups = 0, i, shared;
    Box *first = box;
    qsort(box, count, sizeof(Box), gathers ? by_target : by_source);
    for (i = 0; i < count; i++) {
        int same = i > 0 && first->members < MOST_MEMBERS &&
                   (gathers ? box[i].target_region == first->target_region
                            : box[i].source_region == first->source_region);
        shared = !same ? 0 : first->members == 1 ? most_shared(first, box + i, gathers) : first->shared;
        if (shared && box[i].loops >= shared && interleaved(first, box + i, shared, gathers)) {
            first->shared = shared;
            first->members++;
            box[i].members = 0;
        } else {
            first = box + i;
            first->members = 1;
            first->shared = first->loops;
            groups++;
        }
    }
    return groups;
}

static int is_item(Length run) { return run == 1 || run == 2 || run == 4 || run == 8 || run == 16; }

/* Whether the boxes of a group are items, next to each other on the side that they share, and consecutive in their
 * last loop on the other; and worth to be turned. */
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

/* Put the loop that the source prefers to the last one before it, and say whether there is one. */
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

static void choose(Box *box, int gathers, int streams) {
    Length i, bytes = 0, shortest = box->run;
    int rows = 1;                                /* no loops but the shared ones */
    int dense = gathers || box->members == 1;    /* nothing between them */
    for (i = 0; i < box->members; i++) {
        rows = rows && box[i].loops == box->shared;
        dense = dense && box[i].target - box->target == bytes;
        shortest = least(shortest, box[i].run);
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

static void copies_plan(Copies *list) {
    Length i;
    int gathers = 1;
    double bytes = 0; /* which no stride of zero makes overflow */
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
        Length gathered = find_groups(list->box, list->count, 1);
        if (gathered > 1 && gathered > find_groups(list->box, list->count, 0))
            gathers = 0;
        else if (gathered > 1)
            find_groups(list->box, list->count, 1);
    } else if (list->count == 1) {
        find_groups(list->box, 1, 1);
    }
    for (i = 0; i < list->count; i += list->box[i].members)
        choose(list->box + i, gathers, list->streams);
}

/* -- Moves of few bytes ------------------------------------------------------------------------------------------- */

/* A memcpy of a length that the compiler knows is one or two moves instead of a call. Two moves that overlap copy any
 * length from one to two times their own. */
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

STRIDED_INLINE void move_middle(char *target, const char *source, Length run) {
    Length i;
    for (i = 0; i < run - 32; i += 32)
        memcpy(target + i, source + i, 32);
    memcpy(target + run - 32, source + run - 32, 32);
}

/* Rows of few bytes. */
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

/* The same, with what comes later fetched where processors do not by themselves: they follow rows that are close, not
 * such as have lines between them, and hardly those of which only a part of each line is used. */
static void fetch_rows(char *target, Length stride, const char *source, Length from_stride, Length run, Length rows) {
    const Length apart = magnitude(from_stride), lines = (run + LINE + LINE / 2) & -(Length)LINE;
    const Length ahead = (FAR / lines + 1) * from_stride;
    const int gaps = apart > run && apart < LINE, fetches = gaps || apart >= lines + LINE;
    const Length step = fetches ? 1024 / (gaps ? apart : lines) + 1 : rows;
    Length i, k, some;
    for (; rows > 0; rows -= some, source += some * from_stride, target += some * stride) {
        some = least(rows, step);
        if (gaps)
            for (i = 0; i < some * apart; i += LINE)
                STRIDED_PREFETCH(source + (from_stride < 0 ? -NEAR - i : NEAR + i));
        else if (fetches)
            for (i = 0; i < lines; i += LINE)
                for (k = 0; k < some; k++)
                    STRIDED_PREFETCH_FAR(source + ahead + i + k * from_stride);
        copy_rows(target, stride, source, from_stride, run, some);
    }
}

/* -- Stores past the caches --------------------------------------------------------------------------------------- */

/* What is fetched while a run is copied: for its byte i that at `first` + i, from `until` on that at `then` + i. */
typedef struct {
    const char *first, *then;
    Length until;
} Fetch;

/* So many bytes ahead in runs at a stride. */
STRIDED_INLINE Fetch fetch_ahead(const char *source, Length size, Length stride, Length ahead) {
    Fetch fetch = {source + ahead, source + stride + ahead - size, size - ahead};
    if (ahead >= size)
        fetch.first = source + ahead / size * stride, fetch.until = size;
    return fetch;
}

STRIDED_INLINE const char *fetched(Fetch fetch, Length i) { return (i < fetch.until ? fetch.first : fetch.then) + i; }

/* A line that is written in full and past the caches need not be read first. The ends of a run, which others may
 * share, are written as usual. */
STRIDED_INLINE void stream_fetching(char *target, const char *source, Length size, Fetch near, Fetch far) {
#if STRIDED_SIMD
    Length head = (Length)(-(uintptr_t)target & (LINE - 1)), i;
    if (size < head + LINE) {
        memcpy(target, source, size);
        return;
    }
    memcpy(target, source, head);
    for (i = head; i <= size - LINE; i += LINE) {
        const __m128i *from = (const __m128i *)(source + i);
        __m128i *to = (__m128i *)(target + i);
        __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
        __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        STRIDED_PREFETCH_FAR(fetched(far, i));
        STRIDED_PREFETCH(fetched(near, i));
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    memcpy(target + i, source + i, size - i);
#else
    (void)near, (void)far;
    memcpy(target, source, size);
#endif
}

/* Fetch those lines at the ends of a run that will be written in part only. */
STRIDED_INLINE void fetch_ends(const char *target, Length size) {
    if ((uintptr_t)target & (LINE - 1))
        STRIDED_PREFETCH(target);
    if ((uintptr_t)(target + size) & (LINE - 1))
        STRIDED_PREFETCH(target + size);
}

/* Copy a run; the one that is read next begins at a stride. */
static void stream(char *target, const char *source, Length size, Length stride) {
    stream_fetching(target, source, size, fetch_ahead(source, size, stride, NEAR),
                    fetch_ahead(source, size, stride, FAR));
}

STRIDED_INLINE void copy_run(char *target, const char *source, Length size, Length stride, int streams) {
    if (streams)
        stream(target, source, size, stride);
    else
        memcpy(target, source, size);
}

/* Bytes that are put together here before they are written: pieces that follow each other in the target as one. */
typedef struct {
    char *target;
    Length filled;
    int streams;
    char *buffer; /* of TILE bytes */
    Length nexts; /* what is read next, in equal parts, to be fetched meanwhile */
    const char *next[MOST_MEMBERS];
} Writer;

static void write_out(Writer *writer) {
    const Length size = writer->filled, parts = writer->nexts ? writer->nexts : 1;
    const Length head = (Length)(-(uintptr_t)writer->target & (LINE - 1));
    Length part, start = 0, stop;
    for (part = 0; part < parts && writer->streams; part++, start = stop) {
        const char *next = writer->nexts ? writer->next[part] : writer->buffer;
        const Fetch near = {next, NULL, size}, far = {next + TILE, NULL, size};
        stop = part == parts - 1 ? size : least(size, ((part + 1) * size / parts & -(Length)LINE) + head);
        stream_fetching(writer->target + start, writer->buffer + start, stop - start, near, far);
    }
    memcpy(writer->target + start, writer->buffer + start, size - start);
    writer->target += writer->filled;
    writer->filled = 0;
}

/* Where to put the next `size` bytes (TILE at most), which belong to `target`. */
STRIDED_INLINE char *room_for(Writer *writer, char *target, Length size) {
    if (target != writer->target + writer->filled || writer->filled + size > TILE) {
        if (writer->filled)
            write_out(writer);
        writer->target = target;
    }
    writer->filled += size;
    return writer->buffer + writer->filled - size;
}

/* -- Tiles of transposes ------------------------------------------------------------------------------------------ */

/* A tile: item (column, row) of the target is item (row, column) of the source. Source rows are those of a table,
 * or lie at a stride; items of a source row and of a target row are consecutive. Passed by value: a pointer to it
 * would have to be followed again after each store. */
typedef struct {
    const char *source;
    const char *const *table; /* or NULL */
    Length source_stride;     /* from one source row to the next, without a table */
    char *target;
    Length target_stride; /* from one target row to the next */
    Length rows, columns; /* of the source */
    Length ahead;         /* from a source row to what is read after this tile, or 0 */
} Tile;

STRIDED_INLINE const char *source_row(const Tile tile, Length row) {
    return tile.table ? tile.table[row] : tile.source + row * tile.source_stride;
}

/* The lines of a source row in the next tile; the first one is here already if this tile ends within it. */
STRIDED_INLINE void fetch_next_tile(const Tile tile, const char *source, Length item) {
    Length i;
    if (tile.ahead)
        for (i = LINE - 1; i < tile.columns * item; i += LINE)
            STRIDED_PREFETCH_FAR(source + tile.ahead + i);
}

STRIDED_INLINE void turn_items(const Tile tile, Length item, Length row, Length rows, Length column, Length columns) {
    Length i, k;
    for (i = row; i < row + rows; i++) {
        const char *source = source_row(tile, i) + column * item;
        char *target = tile.target + column * tile.target_stride + i * item;
        fetch_next_tile(tile, source, item);
        for (k = 0; k < columns; k++)
            memcpy(target + k * tile.target_stride, source + k * item, item);
    }
}

#if STRIDED_SIMD

STRIDED_INLINE __m128i low(Length item, __m128i a, __m128i b) {
    return item == 1   ? _mm_unpacklo_epi8(a, b)
           : item == 2 ? _mm_unpacklo_epi16(a, b)
           : item == 4 ? _mm_unpacklo_epi32(a, b)
                       : _mm_unpacklo_epi64(a, b);
}

STRIDED_INLINE __m128i high(Length item, __m128i a, __m128i b) {
    return item == 1   ? _mm_unpackhi_epi8(a, b)
           : item == 2 ? _mm_unpackhi_epi16(a, b)
           : item == 4 ? _mm_unpackhi_epi32(a, b)
                       : _mm_unpackhi_epi64(a, b);
}

/* Number the items of `count` registers (a power of two) one after the other, and write the numbers in binary: one
 * round of unpacking moves each item to where its number is rotated to the left by one bit. As many rounds as a
 * register's number has bits interleave the registers; as many as the number of an item in a register has take
 * them apart; if both are the same that is the transpose of a square. */
STRIDED_INLINE void rotate(Length item, int count, int rounds, __m128i *data) {
    __m128i next[16];
    int round, i;
    for (round = 0; round < rounds; round++) {
        for (i = 0; i < count / 2; i++) {
            next[2 * i] = low(item, data[i], data[i + count / 2]);
            next[2 * i + 1] = high(item, data[i], data[i + count / 2]);
        }
        for (i = 0; i < count; i++)
            data[i] = next[i];
    }
}

STRIDED_INLINE int bits_of(Length n) { return n >= 16 ? 4 : n >= 8 ? 3 : n >= 4 ? 2 : n >= 2 ? 1 : 0; }

STRIDED_INLINE __m128i load(const char *source) { return _mm_loadu_si128((const __m128i *)source); }
STRIDED_INLINE void store(char *target, __m128i data) { _mm_storeu_si128((__m128i *)target, data); }

STRIDED_INLINE void turn_square(const Tile tile, Length item, const char *const *source, Length row, Length column,
                                int columns) {
    const int width = (int)(16 / item);
    char *target = tile.target + column * tile.target_stride + row * item;
    __m128i data[16];
    int i;
    for (i = 0; i < width; i++)
        data[i] = load(source[i] + column * item);
    rotate(item, width, bits_of(width), data);
    for (i = 0; i < columns; i++)
        store(target + i * tile.target_stride, data[i]);
}

/* Squares of as many rows as a register has items; the last ones overlap those before them. */
STRIDED_INLINE void turn_squares(const Tile tile, Length item) {
    const int width = (int)(16 / item);
    Length row, column;
    int i;
    if (tile.rows < width || tile.columns < width) {
        turn_items(tile, item, 0, tile.rows, 0, tile.columns);
        return;
    }
    for (row = 0; row < tile.rows; row += width) {
        const char *source[16];
        row = least(row, tile.rows - width);
        for (i = 0; i < width; i++)
            source[i] = source_row(tile, row + i);
        for (i = 0; i < width; i++)
            fetch_next_tile(tile, source[i], item);
        for (column = 0; column < tile.columns - width; column += width)
            turn_square(tile, item, source, row, column, width);
        turn_square(tile, item, source, row, tile.columns - width, width);
    }
}

/* Fewer source rows than a register has items, whose items fill the target without gaps: what a register has too many
 * of is overwritten next. */
STRIDED_INLINE void turn_narrow_target(const Tile tile, Length item) {
    const int width = (int)(16 / item);
    const Length last = tile.columns - width - 1 - width / tile.rows;
    const char *source[16];
    Length column;
    int i;
    for (i = 0; i < width; i++)
        source[i] = source_row(tile, least(i, tile.rows - 1));
    for (column = 0; column <= last; column += width)
        turn_square(tile, item, source, 0, column, width);
    turn_items(tile, item, 0, tile.rows, column, tile.columns - column);
}

/* Fewer source columns than a register has items: it is filled with what comes after them. */
STRIDED_INLINE void turn_narrow_source(const Tile tile, Length item) {
    const int width = (int)(16 / item);
    const Length beyond = 16 - tile.columns * item, last = tile.rows - width - 1 - beyond / tile.source_stride;
    Length row;
    int i;
    for (row = 0; row <= last; row += width) {
        const char *source[16];
        for (i = 0; i < width; i++)
            source[i] = source_row(tile, row + i);
        turn_square(tile, item, source, row, 0, (int)tile.columns);
    }
    turn_items(tile, item, row, tile.rows - row, 0, tile.columns);
}

/* A few source rows whose items fill the target without gaps. */
STRIDED_INLINE void turn_few_rows(const Tile tile, Length item, int count) {
    const int width = (int)(16 / item);
    Length column, columns = tile.columns - tile.columns % width;
    const char *source[8];
    char *target = tile.target;
    int i;
    for (i = 0; i < count; i++)
        source[i] = source_row(tile, i);
    for (column = 0; column < columns; column += width, target += 16 * count) {
        __m128i data[16];
        for (i = 0; i < count; i++)
            data[i] = load(source[i] + column * item);
        rotate(item, count, bits_of(count), data);
        for (i = 0; i < count; i++)
            store(target + i * 16, data[i]);
    }
    turn_items(tile, item, 0, count, columns, tile.columns - columns);
}

/* A few source columns without gaps. */
STRIDED_INLINE void turn_few_columns(const Tile tile, Length item, int count) {
    const int width = (int)(16 / item);
    Length row, rows = tile.rows - tile.rows % width;
    const char *source = tile.source;
    int i;
    for (row = 0; row < rows; row += width, source += 16 * count) {
        __m128i data[16];
        for (i = 0; i < count; i++)
            data[i] = load(source + i * 16);
        rotate(item, count, bits_of(width), data);
        for (i = 0; i < count; i++)
            store(tile.target + i * tile.target_stride + row * item, data[i]);
    }
    turn_items(tile, item, rows, tile.rows - rows, 0, count);
}

STRIDED_INLINE int has_few_rows(const Tile tile, Length item, int count) {
    return tile.rows == count && tile.target_stride == count * item && count * item < 16;
}

STRIDED_INLINE int has_few_columns(const Tile tile, Length item, int count) {
    return tile.columns == count && !tile.table && tile.source_stride == count * item && count * item <= 16;
}

STRIDED_INLINE void turn_items_of(const Tile tile, Length item) {
    if (has_few_rows(tile, item, 2))
        turn_few_rows(tile, item, 2);
    else if (has_few_rows(tile, item, 4))
        turn_few_rows(tile, item, 4);
    else if (has_few_rows(tile, item, 8))
        turn_few_rows(tile, item, 8);
    else if (has_few_columns(tile, item, 2))
        turn_few_columns(tile, item, 2);
    else if (has_few_columns(tile, item, 4))
        turn_few_columns(tile, item, 4);
    else if (has_few_columns(tile, item, 8))
        turn_few_columns(tile, item, 8);
    else if (tile.rows < 16 / item && tile.target_stride == tile.rows * item)
        turn_narrow_target(tile, item);
    else if (tile.columns < 16 / item && !tile.table && tile.source_stride >= tile.columns * item)
        turn_narrow_source(tile, item);
    else
        turn_squares(tile, item);
}

#else

STRIDED_INLINE void turn_items_of(const Tile tile, Length item) {
    turn_items(tile, item, 0, tile.rows, 0, tile.columns);
}

#endif

static void turn_tile(const Tile tile, Length item) {
    if (item == 1)
        turn_items_of(tile, 1);
    else if (item == 2)
        turn_items_of(tile, 2);
    else if (item == 4)
        turn_items_of(tile, 4);
    else if (item == 8)
        turn_items_of(tile, 8);
    else
        turn_items(tile, 16, 0, tile.rows, 0, tile.columns);
}

/* -- Groups ------------------------------------------------------------------------------------------------------- */

/* The state of a run: where the members of the group are. */
typedef struct {
    const Box *box;
    const char *source[MOST_MEMBERS];
    char *target[MOST_MEMBERS];
    Writer writer;
    int streams;
} Run;

/* Rows to where they belong, without a buffer. */
static void copy_in_place(char *target, Length stride, const char *source, Length from_stride, Length run, Length rows,
                          int streams) {
    if (run < SHORT_RUN || !streams)
        (streams ? fetch_rows : copy_rows)(target, stride, source, from_stride, run, rows);
    else
        for (; rows > 0; rows--, NEXT_ROW) {
            fetch_ends(target + stride, run);
            stream(target, source, run, from_stride);
        }
}

/* Any loops, in order. */
static void copy_loops(const char *source, char *target, const Box *box, Length from, int streams) {
    const Loop *loop = box->loop + from;
    Length i;
    if (from == box->loops) {
        copy_run(target, source, box->run, box->loops ? loop[-1].source : box->run, streams);
    } else if (from < box->loops - 1) {
        for (i = 0; i < loop->extent; i++)
            copy_loops(source + i * loop->source, target + i * loop->target, box, from + 1, streams);
    } else {
        copy_in_place(target, loop->target, source, loop->source, box->run, loop->extent, streams);
    }
}

/* Iteration by iteration over all boxes. */
static void run_runs(Run *run) {
    const Box *box = run->box;
    const Length last = box->shared - 1;
    Length i, m;
    if (box->shared == 0) {
        copy_loops(run->source[0], run->target[0], box, 0, run->streams);
        return;
    }
    for (i = 0; i < box->loop[last].extent; i++)
        for (m = 0; m < box->members; m++) {
            const Loop *loop = box[m].loop + last;
            copy_loops(run->source[m] + i * loop->source, run->target[m] + i * loop->target, box + m, box->shared,
                       run->streams);
        }
}

/* So many iterations at a time that what is read for one box stays for the next. */
static void run_rows(Run *run) {
    const Box *box = run->box;
    Length last = box->shared - 1, extent = box->loop[last].extent, bytes = 0, step, i, m, rows;
    for (m = 0; m < box->members; m++)
        bytes += box[m].run;
    step = bytes < TILE ? TILE / bytes : 1;
    for (i = 0; i < extent; i += step) {
        char *out = NULL;
        rows = least(step, extent - i);
        run->writer.nexts = 0;
        for (m = 0; m < box->members && box->dense; m++) {
            const Loop *loop = box[m].loop + last;
            if (magnitude(loop->source) <= box[m].run + LINE)
                run->writer.next[run->writer.nexts++] = run->source[m] + i * loop->source;
        }
        if (run->streams && box->dense && bytes > 16 && bytes <= TILE)
            out = room_for(&run->writer, run->target[0] + i * bytes, rows * bytes);
        for (m = 0; m < box->members; m++) {
            const Loop *loop = box[m].loop + last;
            const char *source = run->source[m] + i * loop->source;
            char *target = run->target[m] + i * loop->target;
            if (out) {
                fetch_rows(out + (box[m].target - box->target), bytes, source, loop->source, box[m].run, rows);
            } else if (run->streams && loop->target == box[m].run && box[m].run > 16 && rows * box[m].run <= TILE) {
                char *own;
                if (magnitude(loop->source) <= bytes + LINE) { /* the boxes lie between each other in the source */
                    run->writer.nexts = 1;
                    run->writer.next[0] = source + rows * loop->source * (m + box->members) / box->members;
                }
                own = room_for(&run->writer, target, rows * box[m].run);
                fetch_rows(own, box[m].run, source, loop->source, box[m].run, rows);
            } else {
                copy_in_place(target, loop->target, source, loop->source, box[m].run, rows, run->streams);
            }
        }
    }
}

/* A tile has source rows of two lines, and so many of them that its target rows are long: at their ends lines may be
 * written in part only. If there is less of one than that, it has more of the other. */
static void tile_sides(Length rows, Length columns, Length item, Length *tile_rows, Length *tile_columns) {
    const Length wide = item < LINE ? 2 * LINE / item : 1, high = TILE / (2 * LINE);
    *tile_rows = least(rows, columns < wide ? TILE / (item * columns) & -(Length)LINE : high);
    *tile_columns = least(columns, rows < high ? TILE / (item * rows) & -(Length)LINE : wide);
    if (*tile_rows < 1)
        *tile_rows = least(rows, high);
    if (*tile_columns < 1)
        *tile_columns = least(columns, wide);
}

/* A first step that is shorter, so that the next ones begin with lines, if they do at all strides. */
STRIDED_INLINE Length first_step(Length step, Length extent, const char *start, Length stride, Length item) {
    if (step >= extent || step * item < 2 * LINE || stride % LINE)
        return step;
    return step - (Length)((uintptr_t)start & (LINE - 1)) / item;
}

static void run_transpose(Run *run) {
    const Box *box = run->box;
    const Loop outer = box->loop[box->loops - 2], inner = box->loop[box->loops - 1];
    const Length item = box->run;
    const Length apart = outer.target % (8 * LINE);
    /* Small ones need no buffer, unless the target rows of a tile fall on few places of the cache. */
    const int direct = !run->streams && apart >= LINE && apart <= 7 * LINE;
    /* Of large items a register holds too few to be worth stores across lines. */
    const int turns = is_item(item) && inner.target == item && outer.source == item &&
                      !(direct && item >= 8 && (item == 16 || outer.target % 16));
    Length step_rows, step_columns, row, column, rows, columns, k;
    tile_sides(inner.extent, outer.extent, item, &step_rows, &step_columns);
    for (row = 0; row < inner.extent; row += rows) {
        rows = row ? step_rows : first_step(step_rows, inner.extent, run->target[0], outer.target, item);
        rows = least(rows, inner.extent - row);
        for (column = 0; column < outer.extent; column += columns) {
            const char *source = run->source[0] + row * inner.source + column * outer.source;
            char *target = run->target[0] + row * inner.target + column * outer.target;
            Tile tile = {source, NULL, inner.source, run->writer.buffer, rows * item, rows, 0, 0};
            columns = column ? step_columns : first_step(step_columns, outer.extent, source, inner.source, item);
            columns = least(columns, outer.extent - column);
            tile.columns = columns;
            if (run->streams)
                tile.ahead = column + columns < outer.extent ? columns * outer.source
                                                             : rows * inner.source - column * outer.source;
            if (!turns) {
                for (k = 0; k < columns; k++)
                    copy_rows(target + k * outer.target, inner.target, source + k * outer.source, inner.source, item,
                              rows);
            } else if (direct) {
                tile.target = target, tile.target_stride = outer.target;
                turn_tile(tile, item);
            } else if (rows * item == outer.target) {
                turn_tile(tile, item);
                copy_run(target, tile.target, columns * rows * item, 0, run->streams);
            } else {
                if (columns <= MOST_MEMBERS) /* a line between them, as in run_split */
                    tile.target_stride += LINE;
                for (k = 0; k < columns && run->streams; k++)
                    fetch_ends(target + k * outer.target, rows * item);
                turn_tile(tile, item);
                for (k = 0; k < columns; k++)
                    copy_run(target + k * outer.target, tile.target + k * tile.target_stride, rows * item, 0,
                             run->streams);
            }
        }
    }
}

static void run_join(Run *run) {
    const Box *box = run->box;
    const Loop loop = box->loop[box->shared - 1];
    Length item = box->run, bytes = item * box->members, step = TILE / bytes, i, k, m;
    const char *table[MOST_MEMBERS];
    step -= step > LINE ? step % LINE : 0;
    for (i = 0; i < loop.extent; i += step) {
        Length columns = least(step, loop.extent - i);
        char *target = run->target[0] + i * loop.target;
        Tile tile = {NULL, table, 0, target, loop.target, box->members, columns, 0};
        for (m = 0; m < box->members; m++)
            table[m] = run->source[m] + i * item;
        if (run->streams && box->dense) {
            tile.target = room_for(&run->writer, target, columns * bytes);
            turn_tile(tile, item);
        } else if (run->streams) {
            tile.target = run->writer.buffer, tile.target_stride = bytes;
            turn_tile(tile, item);
            for (k = 0; k < columns; k++)
                memcpy(target + k * loop.target, run->writer.buffer + k * bytes, bytes);
        } else {
            turn_tile(tile, item);
        }
    }
}

static void run_split(Run *run) {
    const Box *box = run->box;
    const Loop loop = box->loop[box->shared - 1];
    const Length item = box->run;
    Length step = TILE / item / box->members, i, m;
    char *buffer = run->writer.buffer;
    step -= step > LINE ? step % LINE : 0;
    for (i = 0; i < loop.extent; i += step) {
        const Length rows = least(step, loop.extent - i);
        /* A line between the rows of the buffer: at a distance of 4096 bytes stores would seem to meet loads. */
        const Tile tile = {run->source[0] + i * loop.source, NULL, loop.source, buffer, rows * item + LINE, rows,
                           box->members, 0};
        turn_tile(tile, item);
        for (m = 0; m < box->members; m++) {
            char *target = run->target[m] + i * item;
            const char *data = buffer + m * (rows * item + LINE);
            /* While a line is written a later one is read. */
            const char *next = tile.source + (rows + m * rows / box->members) * loop.source;
            const Fetch near = {next, NULL, rows * item}, far = {next + FAR, NULL, rows * item};
            if (run->streams)
                stream_fetching(target, data, rows * item, near, far);
            else
                memcpy(target, data, rows * item);
        }
    }
}

/* The shared loops up to the last `left` of them, all members going along. */
static void run_shared(Run *run, Length level, Length left) {
    const Box *box = run->box;
    Length i, m;
    if (box->loops && level < box->shared - left) {
        for (i = 0; i < box->loop[level].extent; i++) {
            run_shared(run, level + 1, left);
            for (m = 0; m < box->members; m++) {
                run->source[m] += box[m].loop[level].source;
                run->target[m] += box[m].loop[level].target;
            }
        }
        for (m = 0; m < box->members; m++) {
            run->source[m] -= box->loop[level].extent * box[m].loop[level].source;
            run->target[m] -= box->loop[level].extent * box[m].loop[level].target;
        }
    } else if (box->kind == RUNS) {
        run_runs(run);
    } else if (box->kind == ROWS) {
        run_rows(run);
    } else if (box->kind == TRANSPOSE) {
        run_transpose(run);
    } else if (box->kind == JOIN) {
        run_join(run);
    } else {
        run_split(run);
    }
}

static void copies_run(const Copies *list, const char *const *sources, char *const *targets) {
    char memory[TILE + LINE * (MOST_MEMBERS + 1)];
    Run run;
    Length i, m;
    memset(&run.writer, 0, sizeof(Writer));
    run.writer.buffer = memory + (-(uintptr_t)memory & (LINE - 1));
    run.writer.streams = run.streams = list->streams;
    for (i = 0; i < list->count; i += run.box->members) {
        run.box = list->box + i;
        for (m = 0; m < run.box->members; m++) {
            run.source[m] = sources[run.box[m].source_region] + run.box[m].source;
            run.target[m] = targets[run.box[m].target_region] + run.box[m].target;
        }
        run_shared(&run, 0, run.box->kind == TRANSPOSE ? 2 : 1);
        if (run.writer.filled)
            write_out(&run.writer);
    }
#if STRIDED_SIMD
    if (list->streams)
        _mm_sfence(); /* what went past the caches is there before anything that says so */
#endif
}

/* -- Parts of packed boxes ---------------------------------------------------------------------------------------- */

enum { MOST_AXES = 64, CUTS = 64, CUT_LOOPS = 512 };

/* A list that is filled with pieces of boxes, and run whenever it is full. */
typedef struct {
    Box box[CUTS];
    Loop loop[CUT_LOOPS];
    Length count, loops;
    int unpacks, streams;
    char *const *regions;
    char *packed;
} Cuts;

static void run_cuts(Cuts *cuts) {
    Copies list = {cuts->box, cuts->count, 1, cuts->streams};
    copies_plan(&list);
    if (cuts->unpacks)
        copies_run(&list, (const char *const *)&cuts->packed, cuts->regions);
    else
        copies_run(&list, (const char *const *)cuts->regions, &cuts->packed);
    cuts->count = cuts->loops = 0;
}

/* So many iterations of a loop of a packed box, with all loops inside of it. */
static void add_cut(Cuts *cuts, const Box *box, Length level, Length extent, Length source, Length packed,
                    Length run) {
    Length loops = box->loops - level, i;
    Box *piece;
    if (cuts->count == CUTS || cuts->loops + loops > CUT_LOOPS)
        run_cuts(cuts);
    piece = cuts->box + cuts->count++;
    piece->source_region = cuts->unpacks ? 0 : box->source_region;
    piece->target_region = cuts->unpacks ? box->source_region : 0;
    piece->source = cuts->unpacks ? packed : source;
    piece->target = cuts->unpacks ? source : packed;
    piece->run = run, piece->loops = loops, piece->loop = cuts->loop + cuts->loops;
    cuts->loops += loops;
    for (i = 0; i < loops; i++) {
        Loop loop = box->loop[level + i];
        piece->loop[i].extent = i ? loop.extent : extent;
        piece->loop[i].source = cuts->unpacks ? loop.target : loop.source;
        piece->loop[i].target = cuts->unpacks ? loop.source : loop.target;
    }
}

/* Bytes begin to end of what the loops of a box from `level` on pack one after the other on its target side: part
 * of an iteration, whole ones, part of one. */
static void cut(const Box *box, Length level, Length source, Length begin, Length end, Length packed, Cuts *cuts) {
    Length whole, first, last;
    if (begin >= end)
        return;
    if (level == box->loops) {
        add_cut(cuts, box, level, 1, source + begin, packed, end - begin);
        return;
    }
    whole = box->loop[level].target;
    first = begin / whole + (begin % whole != 0), last = end / whole;
    if (first > last) {
        source += last * box->loop[level].source;
        cut(box, level + 1, source, begin - last * whole, end - last * whole, packed, cuts);
        return;
    }
    if (begin < first * whole)
        cut(box, level + 1, source + (first - 1) * box->loop[level].source, begin - (first - 1) * whole, whole, packed,
            cuts);
    packed += first * whole - begin;
    if (first < last)
        add_cut(cuts, box, level, last - first, source + first * box->loop[level].source, packed, box->run);
    packed += (last - first) * whole;
    if (last * whole < end)
        cut(box, level + 1, source + last * box->loop[level].source, 0, end - last * whole, packed, cuts);
}

#endif
