/* The two lines of a rank in a rendezvous, and the wait for those of its peers. The proof is in _rendezvous.pyx. */

#ifndef MESHCOMM_RENDEZVOUS_H
#define MESHCOMM_RENDEZVOUS_H

#include <stddef.h>
#include <stdint.h>

/* One rank writes a line and the others read it. A line takes 128 bytes, two cache lines, because processors fetch
   cache lines in pairs. The fields of a line are written before its epoch. */

typedef struct {
    uint64_t epoch;    /* the number of the exchange that the line is about */
    uint64_t failed;   /* not 0 after the rank left an exchange with an error; only in the done line */
    uint64_t digest;   /* the call digest: of the numbers of all exchanges up to this one; from here on: ready line */
    int64_t source;    /* where the rank's block begins in its pool, or -1 if it is not there */
    int64_t target;    /* the same for its new block */
    uint64_t agreeing; /* its last agreement with all other ranks on a call: see (G) */
    char rest[80];
} mc_line;

typedef struct {
    mc_line ready; /* "my blocks are there: read the source, write to the target" */
    mc_line done;  /* "I have read and written everything that I had to" */
} mc_lines;

static inline uint64_t mc_epoch(const mc_line *line) { return __atomic_load_n(&line->epoch, __ATOMIC_ACQUIRE); }

static inline uint64_t mc_failed(const mc_line *line) { return __atomic_load_n(&line->failed, __ATOMIC_ACQUIRE); }

static inline void mc_publish(mc_line *line, uint64_t epoch)
{
#if defined(__SSE2__)
    __builtin_ia32_sfence(); /* a release store does not order non-temporal stores that came before it */
#endif
    __atomic_store_n(&line->epoch, epoch, __ATOMIC_RELEASE);
}

static inline uint64_t mc_agreeing(const mc_line *line) { return __atomic_load_n(&line->agreeing, __ATOMIC_ACQUIRE); }

/* The agreements before an epoch are numbered from epoch * 2**16 on; after so many of them, the number stays. */
static inline uint64_t mc_first_agreement(uint64_t epoch) { return epoch << 16; }

static inline void mc_agree(mc_line *line, uint64_t epoch)
{
    uint64_t first = mc_first_agreement(epoch), last = line->agreeing;
    __atomic_store_n(&line->agreeing, last < first ? first : last + ((last & 0xffff) < 0xffff), __ATOMIC_RELEASE);
}

static inline void mc_fail(mc_line *line) { __atomic_store_n(&line->failed, (uint64_t)1, __ATOMIC_RELEASE); }

static inline void mc_forgive(mc_line *line) { __atomic_store_n(&line->failed, (uint64_t)0, __ATOMIC_RELEASE); }

/* After a mismatch, one rank may load a digest while the other stores the next. It gets one or the other. */
static inline uint64_t mc_get_digest(const mc_line *line) { return __atomic_load_n(&line->digest, __ATOMIC_RELAXED); }

static inline void mc_set_digest(mc_line *line, uint64_t digest)
{
    __atomic_store_n(&line->digest, digest, __ATOMIC_RELAXED);
}

/* The call digest after one more exchange. For each number this is a bijection (that of splitmix64): two ranks whose
   digests differ go on to differ while they pass equal numbers. */
static inline uint64_t mc_digest(uint64_t digest, uint64_t number)
{
    digest = (digest + 0x9e3779b97f4a7c15u) ^ number;
    digest = (digest ^ (digest >> 30)) * 0xbf58476d1ce4e5b9u;
    digest = (digest ^ (digest >> 27)) * 0x94d049bb133111ebu;
    return digest ^ (digest >> 31);
}

/* Nanoseconds of waiting before the first nap. A compromise: Linux lets a nap last 50 microseconds longer. Two ranks on
   two cores, of which one came 12 milliseconds late, were done 0.2 milliseconds after it came. */
#define MC_NAP_AFTER 10000000

#ifdef __linux__

#include <sched.h>
#include <time.h>

static inline void mc_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static inline int64_t mc_nanoseconds(void) /* as time.monotonic_ns of Python */
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int64_t mc_now(void) { return mc_nanoseconds() / 1000; }

/* Sleep for a hundredth of the time that this rank has waited, a millisecond at most, if it has waited for long. So it
   leaves its processor to the rank that it waits for, and hardly notices too late that the wait is over. */
static inline void mc_nap(int64_t waited) /* nanoseconds */
{
    struct timespec pause = {0, waited < 100000000 ? (long)waited / 100 : 1000000};
    if (waited >= MC_NAP_AFTER)
        nanosleep(&pause, NULL);
}

/* Wait until peers have reached an epoch, from number *next on. Return 1; or 0 if *microseconds* passed before. */
static inline int mc_wait(mc_lines **lines, const int *peers, int count, int done, uint64_t epoch, int64_t microseconds,
                   int *next)
{
    int64_t end = 0;
    while (*next < count) {
        const mc_lines *theirs = lines[peers[*next]];
        const mc_line *line = done ? &theirs->done : &theirs->ready;
        int pauses = 20; /* then yield: there may be more ranks than processors */
        while (mc_epoch(line) < epoch && pauses--)
            mc_pause();
        if (pauses >= 0 || mc_epoch(line) >= epoch) {
            ++*next;
            continue;
        }
        sched_yield();
        if (!end)
            end = mc_now() + microseconds;
        else if (mc_now() >= end)
            return 0;
    }
    return 1;
}

#else /* not Linux: no pool can be made, so no rank waits */

static inline int64_t mc_nanoseconds(void) { return 0; }

static inline void mc_nap(int64_t waited) { (void)waited; }

static inline int mc_wait(mc_lines **lines, const int *peers, int count, int done, uint64_t epoch, int64_t microseconds,
                   int *next)
{
    return (void)lines, (void)peers, (void)count, (void)done, (void)epoch, (void)microseconds, (void)next, 0;
}

#endif
#endif
