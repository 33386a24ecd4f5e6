// How blocks of Hopper's attention divide their work: two warpgroups multiply, a third fetches for them, and a block goes
// from item to item, so that the next one's rows are there when the last one's results are written.
#pragma once

#include "attention_places.cuh"
#include "attention_ptx.cuh"

constexpr int MULTIPLYING = 256;  // threads
constexpr int FETCHING = 128;
constexpr int HOPPER_THREADS = MULTIPLYING + FETCHING;

// Registers of a thread, in place of the 168 that each begins with.
template <int COUNT> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Eight bytes of shared memory that count arrivals and go through phases of alternating parity.
struct Barrier {
    u32 at;

    __device__ __forceinline__ void init(int arrivals) const {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
    }
    __device__ __forceinline__ void arrive() const {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
    }
    __device__ __forceinline__ bool over(u32 parity) const {
        u32 over;
        asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                     : "=r"(over)
                     : "r"(at), "r"(parity)
                     : "memory");
        return over;
    }
    __device__ __forceinline__ void wait(u32 parity) const {
        asm volatile("{.reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN;}" ::"r"(at),
                     "r"(parity)
                     : "memory");
    }
};

// Two places in shared memory that are filled and used in turns. Both sides count the turns.
struct Ring {
    static constexpr u32 BYTES = 4 * 8;
    u32 barriers;
    u32 turn;

    __device__ __forceinline__ u32 stage() const { return turn % 2; }
    __device__ __forceinline__ u32 parity() const { return turn / 2 % 2; }
    __device__ __forceinline__ Barrier full() const { return {barriers + stage() * 8}; }
    __device__ __forceinline__ Barrier empty() const { return {barriers + 16 + stage() * 8}; }

    __device__ __forceinline__ void init() const {
#pragma unroll
        for (int stage = 0; stage < 2; stage++) {
            Barrier{barriers + stage * 8}.init(FETCHING);
            Barrier{barriers + 16 + stage * 8}.init(MULTIPLYING / WARP);
        }
    }
    __device__ __forceinline__ void await() const { full().wait(parity()); }
    // All lanes of the warp have read what they need.
    __device__ __forceinline__ void release() {
        if (threadIdx.x % WARP == 0) empty().arrive();
        turn++;
    }
};

// A fetching thread's copies: those under way are announced when the next ones have been started.
struct Fetcher {
    int thread;
    u32 unannounced;

    __device__ __forceinline__ Fetcher() : thread(threadIdx.x - MULTIPLYING), unannounced(0) {}

    __device__ __forceinline__ void announce() { announce_but<0>(); }
    // Waits until the ring's next place is free. Those who free it may need what is under way.
    __device__ __forceinline__ void claim(const Ring& ring) {
        if (ring.empty().over(ring.parity() ^ 1)) return;
        announce();
        ring.empty().wait(ring.parity() ^ 1);
    }
    // All copies to the ring's next place have been started.
    __device__ __forceinline__ void started(Ring& ring) {
        copies_commit();
        announce_but<1>();
        unannounced = ring.full().at;
        ring.turn++;
    }

private:
    // What is under way, but for the last groups of copies.
    template <int LAST> __device__ __forceinline__ void announce_but() {
        if (unannounced == 0) return;
        copies_wait<LAST>();
        publish();
        Barrier{unannounced}.arrive();
        unannounced = 0;
    }
};

// One head of one tile, in shared memory.
struct Item {
    static constexpr u32 BYTES = 16;
    static constexpr int OUTSIDE = 1 << 16, END = 2 << 16;
    int start, length, tile, head_and_flags;

    __device__ __forceinline__ int head() const { return head_and_flags & 0xffff; }
    __device__ __forceinline__ bool outside() const { return head_and_flags & OUTSIDE; }
    __device__ __forceinline__ bool end() const { return head_and_flags & END; }

    __device__ __forceinline__ void write(u32 at) const {
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(start), "r"(length), "r"(tile),
                     "r"(head_and_flags)
                     : "memory");
    }
    static __device__ __forceinline__ Item read(u32 at) {
        const uint4 words = load_shared16(at);
        return {(int)words.x, (int)words.y, (int)words.z, (int)words.w};
    }
};

// The items of a block: every so-many-th of all, those with the most work first, in the order of the blocks and then
// against it, so that all blocks have about as much to do.
struct Items {
    Tiles tiles;
    int heads, total, round;
    bool from_end;

    __device__ __forceinline__ Items(const int* bounds, int sequences, int tokens, int rows, int heads, bool from_end)
        : tiles(bounds, sequences, tokens, rows), heads(heads), round(0), from_end(from_end) {
        total = tiles.from(0) * heads;
    }

    // All lanes of a warp must call.
    __device__ __forceinline__ Item next() {
        const int blocks = gridDim.x, block = blockIdx.x;
        while (round * blocks < total) {
            const int index = round * blocks + (round % 2 ? blocks - 1 - block : block);
            round++;
            if (index >= total) continue;
            const Place place = locate(tiles, index / heads, from_end);
            return {place.start, place.length, place.tile, index % heads | (place.outside ? Item::OUTSIDE : 0)};
        }
        return {0, 0, 0, Item::END};
    }
};

// Among the threads of one multiplying warpgroup.
__device__ __forceinline__ void group_barrier(int group) {
    asm volatile("bar.sync %0, 128;" ::"r"(group + 3) : "memory");
}
