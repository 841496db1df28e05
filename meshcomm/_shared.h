/* What _shared.pyx asks of the system: memory that other processes can map, and lines by which ranks meet.

   Only Linux has all of it; elsewhere every function says ENOSYS. Functions return 0 or an error number. */

#ifndef MESHCOMM_SHARED_H
#define MESHCOMM_SHARED_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

/* -- lines ---------------------------------------------------------------------------------------------------------

   Each rank of a meeting has two lines, which it alone writes and the others read. A line is two cache lines long, as
   processors fetch them in pairs. What a line says is written before its epoch. */

typedef struct {
    uint64_t epoch;  /* the exchange that the line is about */
    uint64_t failed; /* not 0 once the rank has left an exchange with an error: in the done line */
    uint64_t chain;  /* the fingerprint of all exchanges so far: this and what follows in the ready line */
    int64_t source;  /* where the block is in the rank's pool, or -1 */
    int64_t target;
    uint64_t agreeing; /* the exchange before which the rank has last begun to agree with all others on a call */
    char rest[80];
} mc_line;

typedef struct {
    mc_line ready; /* the blocks are there: others may read the source and write to the target */
    mc_line done;  /* this rank has read and written all that it had to */
} mc_place;

static inline uint64_t mc_epoch(const mc_line *line) { return __atomic_load_n(&line->epoch, __ATOMIC_ACQUIRE); }

static inline uint64_t mc_failed(const mc_line *line) { return __atomic_load_n(&line->failed, __ATOMIC_ACQUIRE); }

static inline void mc_publish(mc_line *line, uint64_t epoch)
{
#if defined(__SSE2__)
    __builtin_ia32_sfence(); /* a release does not order the non-temporal stores of the kernels */
#endif
    __atomic_store_n(&line->epoch, epoch, __ATOMIC_RELEASE);
}

static inline uint64_t mc_agreeing(const mc_line *line) { return __atomic_load_n(&line->agreeing, __ATOMIC_ACQUIRE); }

static inline void mc_agree(mc_line *line, uint64_t epoch) { __atomic_store_n(&line->agreeing, epoch, __ATOMIC_RELEASE); }

static inline void mc_fail(mc_line *line) { __atomic_store_n(&line->failed, (uint64_t)1, __ATOMIC_RELEASE); }

/* A chain of fingerprints: each step is a bijection (from splitmix64), so that chains which differ go on differing. */
static inline uint64_t mc_chained(uint64_t chain, uint64_t number)
{
    chain = (chain + 0x9e3779b97f4a7c15u) ^ number;
    chain = (chain ^ (chain >> 30)) * 0xbf58476d1ce4e5b9u;
    chain = (chain ^ (chain >> 27)) * 0x94d049bb133111ebu;
    return chain ^ (chain >> 31);
}

/* -- pools: this process's own, for those who fork --------------------------------------------------------------- */

typedef struct mc_pool {
    char *base;
    size_t size;
    int fd;
    int forked; /* whether this process is a child of the one that made the pool */
    struct mc_pool *next;
} mc_pool;

static mc_pool *mc_pools;

#ifdef __linux__

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#define MFD_ALLOW_SEALING 2u
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Make a file of *size* bytes without pages and without a path; it ends with the last process that uses it. */
static int mc_create(size_t size, int *fd)
{
#ifdef SYS_memfd_create
    *fd = (int)syscall(SYS_memfd_create, "meshcomm", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (*fd < 0 && errno == EINVAL) /* Linux before 6.3 */
        *fd = (int)syscall(SYS_memfd_create, "meshcomm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0)
        return errno;
    /* Nobody can cut it below what others have mapped. */
    if (ftruncate(*fd, (off_t)size) || fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) {
        int error = errno;
        close(*fd);
        return error;
    }
    return 0;
#else
    (void)size, (void)fd;
    return ENOSYS;
#endif
}

/* Map a file, or with -1 memory of this process only, in large pages where the system has them. */
static int mc_map(int fd, size_t size, char **base)
{
    const int flags = (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_NORESERVE;
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (found == MAP_FAILED)
        return errno;
    *base = (char *)found;
    if (fd < 0)
        madvise(found, size, MADV_HUGEPAGE);
    return 0;
}

static void mc_unmap(char *base, size_t size) { munmap(base, size); }

static void mc_close(int fd) { close(fd); }

static size_t mc_page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static void mc_give_back(int fd, char *base, size_t offset, size_t length)
{
    if (fd < 0)
        madvise(base + offset, length, MADV_DONTNEED);
    else
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length);
}

/* Make sure that a range has its pages: without memory for them this is an error here, but SIGBUS at first use. */
static int mc_provide(int fd, char *base, size_t offset, size_t length)
{
    const size_t piece = (size_t)1 << 24; /* a signal interrupts fallocate, which then begins anew */
    size_t end = offset + length;
    if (!madvise(base + offset, length, MADV_POPULATE_WRITE))
        return 0;
    if (errno != EINVAL)
        return errno;
    if (fd < 0) /* Linux before 5.14: pages come with the first use, as from malloc */
        return 0;
    while (offset < end) {
        size_t now = end - offset < piece ? end - offset : piece;
        if (!fallocate(fd, 0, (off_t)offset, (off_t)now))
            offset += now;
        else if (errno != EINTR)
            return errno;
    }
    return 0;
}

/* What a child writes must not change our pools: it sees our blocks, but its changes are its own. */
static void mc_in_child(void)
{
    for (mc_pool *pool = mc_pools; pool; pool = pool->next)
        if (!pool->forked) {
            const int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
            pool->forked = 1;
            if (pool->fd >= 0 && mmap(pool->base, pool->size, PROT_READ | PROT_WRITE, flags, pool->fd, 0) == MAP_FAILED)
                mprotect(pool->base, pool->size, PROT_READ);
        }
}

static int mc_watch_forks(void) { return pthread_atfork(NULL, NULL, mc_in_child); }

/* -- waiting ------------------------------------------------------------------------------------------------------ */

static inline void mc_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static inline int64_t mc_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Wait until partners have come to an epoch, from number *next on: 1, or 0 if not all have in some microseconds. */
static int mc_wait(mc_place **places, const int *partners, int count, int done, uint64_t epoch, int64_t microseconds,
                   int *next)
{
    int64_t end = 0;
    while (*next < count) {
        const mc_place *place = places[partners[*next]];
        const mc_line *line = done ? &place->done : &place->ready;
        int pauses = 20; /* then the processor is left to others: ranks may be more than processors */
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

#else /* no Linux */

static int mc_create(size_t size, int *fd) { return (void)size, (void)fd, ENOSYS; }
static int mc_map(int fd, size_t size, char **base) { return (void)fd, (void)size, (void)base, ENOSYS; }
static void mc_unmap(char *base, size_t size) { (void)base, (void)size; }
static void mc_close(int fd) { (void)fd; }
static size_t mc_page(void) { return 4096; }
static void mc_give_back(int fd, char *base, size_t offset, size_t length)
{
    (void)fd, (void)base, (void)offset, (void)length;
}
static int mc_provide(int fd, char *base, size_t offset, size_t length)
{
    return (void)fd, (void)base, (void)offset, (void)length, ENOSYS;
}
static int mc_watch_forks(void) { return 0; }
static int mc_wait(mc_place **places, const int *partners, int count, int done, uint64_t epoch, int64_t microseconds,
                   int *next)
{
    return (void)places, (void)partners, (void)count, (void)done, (void)epoch, (void)microseconds, (void)next, 0;
}

#endif
#endif
