/* What ranks write to repeat an exchange without waiting. The proof is in _channel.pyx. */

#ifndef MESHCOMM_CHANNEL_H
#define MESHCOMM_CHANNEL_H

#include "_rendezvous.h"

/* Both lie where a pool has its lines: see (E) for the offsets of their fields. */

typedef struct {
    uint64_t epoch;      /* the number of the last exchange that the rank has begun */
    uint64_t unused;     /* */
    uint64_t digests[2]; /* of the exchanges with even and with odd numbers */
    char rest[104];      /* */
    uint64_t failed;     /* not 0 after the rank found an error */
} mc_station;

typedef struct {
    uint64_t claimed; /* the last exchange whose bytes from the peer to this rank somebody copies, or has copied */
    char rest[40];    /* */
    uint64_t arrived; /* the last exchange whose bytes from the peer are here */
    uint64_t taken;   /* the last exchange whose bytes from this rank are at the peer */
} mc_slot;

static inline uint64_t mc_load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

/* Store after all that came before, also after non-temporal stores. */
static inline void mc_store(uint64_t *word, uint64_t value)
{
#if defined(__SSE2__)
    __builtin_ia32_sfence();
#endif
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline void mc_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* Return whether the caller is the one to copy in an exchange. */
static inline int mc_claim(mc_slot *slot, uint64_t epoch)
{
    uint64_t last = mc_load(&slot->claimed);
    return last < epoch && __atomic_compare_exchange_n(&slot->claimed, &last, epoch, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

#ifdef __linux__
static inline void mc_yield(void) { sched_yield(); }
#else
static inline void mc_pause(void) {}
static inline void mc_yield(void) {}
#endif

#endif
