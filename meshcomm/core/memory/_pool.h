/* What _pool.pyx asks of the system: a file that other processes can map, its pages, and to hear of forks.

   Only Linux has all of it; elsewhere every function returns ENOSYS. Functions return 0 or an error number. */

#ifndef MESHCOMM_POOL_H
#define MESHCOMM_POOL_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

/* The pools that this process made, in a list: a child that is forked off walks through it. */
typedef struct mc_pool {
    char *base;
    size_t size;
    int fd;
    int forked; /* not 0 in a child of the process that made the pool */
    struct mc_pool *next;
} mc_pool;

static mc_pool *mc_pools;

#ifdef __linux__

#include <fcntl.h>
#include <pthread.h>
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

/* Make a file of *size* bytes that has no path and no pages yet. It ends with the last process that uses it. */
static int mc_create(size_t size, int *fd)
{
#ifdef SYS_memfd_create
    *fd = (int)syscall(SYS_memfd_create, "meshcomm", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (*fd < 0 && errno == EINVAL) /* Linux before 6.3 */
        *fd = (int)syscall(SYS_memfd_create, "meshcomm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0)
        return errno;
    /* Nobody can shorten the file: to touch a page behind its end would kill the processes that map it. */
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

/* Map a file; or, if *fd* is -1, memory of this process only, in large pages where the system has them. */
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

/* Give the pages of a range back to the system; the addresses stay. */
static void mc_give_back(int fd, char *base, size_t offset, size_t length)
{
    if (fd < 0)
        madvise(base + offset, length, MADV_DONTNEED);
    else
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length);
}

/* Get pages for a range. If the system has none left, this is an error here; without the call it would be SIGBUS at
   the first use. */
static int mc_provide(int fd, char *base, size_t offset, size_t length)
{
    const size_t piece = (size_t)1 << 24; /* a signal ends fallocate, which then starts again from the beginning */
    size_t end = offset + length;
    if (!madvise(base + offset, length, MADV_POPULATE_WRITE))
        return 0;
    if (errno != EINVAL)
        return errno;
    if (fd < 0) /* Linux before 5.14: pages come at first use, as after malloc */
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

/* Runs in a child after fork: map every pool again as a private copy. The child sees the blocks of its parent, but
   what it writes stays with the child. */
static void mc_in_child(void)
{
    for (mc_pool *pool = mc_pools; pool; pool = pool->next)
        if (!pool->forked) {
            const int access = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
            pool->forked = 1;
            if (pool->fd >= 0 && mmap(pool->base, pool->size, access, flags, pool->fd, 0) == MAP_FAILED)
                mprotect(pool->base, pool->size, PROT_READ);
        }
}

static int mc_watch_forks(void) { return pthread_atfork(NULL, NULL, mc_in_child); }

/* A clock in seconds that is cheap to read and right to some milliseconds. */
static double mc_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
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
static double mc_seconds(void) { return 0; }

#endif
#endif
