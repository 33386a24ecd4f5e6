// Attention itself on Hopper: an item is one head of 128 queries. Part of attention.cuh.
#pragma once

#include "attention_pipeline.cuh"

constexpr int KEYS = 128;  // at a time
static_assert(KEYS == ROWS, "both warpgroups see the same tiles of keys");

struct ForwardMemory {
    u32 base;

    __device__ __forceinline__ ForwardMemory() : base((shared_address(memory) + 1023) & ~1023u) {}
    __device__ __forceinline__ Tile<ROWS> q(u32 stage) const { return {base + stage * Tile<ROWS>::BYTES}; }
    __device__ __forceinline__ Tile<KEYS> k(u32 stage) const { return {base + (2 + stage) * Tile<KEYS>::BYTES}; }
    __device__ __forceinline__ Tile<KEYS> v(u32 stage) const { return {base + (4 + stage) * Tile<KEYS>::BYTES}; }
    __device__ __forceinline__ u32 item(u32 stage) const { return base + 6 * Tile<KEYS>::BYTES + stage * Item::BYTES; }
    __device__ __forceinline__ Ring ring(int index) const { return {item(2) + index * Ring::BYTES, 0}; }
};

struct ForwardShape {
    const T* qkv;
    int query_heads, kv_heads, window;
    u64 stride, out_stride;

    __device__ __forceinline__ int begin(const Item& item) const {
        return max(item.tile * ROWS - window + 1, 0) / KEYS;
    }
    __device__ __forceinline__ int end(const Item& item) const {
        return (min((item.tile + 1) * ROWS, item.length) - 1) / KEYS + 1;
    }
};

__device__ __forceinline__ void forward_fetch(const ForwardMemory& at, const ForwardShape& shape, Items items) {
    Fetcher fetcher;
    Ring q_ring = at.ring(0), k_ring = at.ring(1), v_ring = at.ring(2);
    for (;;) {
        const Item item = items.next();
        fetcher.claim(q_ring);
        if (fetcher.thread == 0) item.write(at.item(q_ring.stage()));
        if (item.end() || item.outside()) {
            fetcher.started(q_ring);
            fetcher.announce();
            __syncwarp();
            if (item.end()) return;
            continue;
        }
        const int first_query = item.tile * ROWS;
        const int head = item.head(), kv_head = head / (shape.query_heads / shape.kv_heads);
        const T* const rows_from = shape.qkv + item.start * shape.stride;
        const T* const k_from = rows_from + (shape.query_heads + kv_head) * D;
        const T* const v_from = k_from + shape.kv_heads * D;
        auto fetch = [&](Ring& ring, Tile<KEYS> tile, const T* from, int first) {
            tile.template fetch<FETCHING>(from + first * shape.stride, shape.stride, item.length - first, fetcher.thread);
            fetcher.started(ring);
        };
        fetch(q_ring, at.q(q_ring.stage()), rows_from + head * D, first_query);
        const int begin = shape.begin(item), end = shape.end(item);
        // Keys are needed one tile ahead of the values.
        for (int tile = begin; tile <= end; tile++) {
            if (tile < end) {
                fetcher.claim(k_ring);
                fetch(k_ring, at.k(k_ring.stage()), k_from, tile * KEYS);
            }
            if (tile > begin) {
                fetcher.claim(v_ring);
                fetch(v_ring, at.v(v_ring.stage()), v_from, (tile - 1) * KEYS);
            }
        }
        __syncwarp();
    }
}

__device__ __forceinline__ void forward_multiply(const ForwardMemory& at, const ForwardShape& shape, T* out, float* lse,
                                                 float scale) {
    Ring q_ring = at.ring(0), k_ring = at.ring(1), v_ring = at.ring(2);
    const int group_row = first_group_row();
    for (;;) {
        q_ring.await();
        const Item item = Item::read(at.item(q_ring.stage()));
        if (item.end()) return;
        const int first_query = item.tile * ROWS, rows = min(ROWS, item.length - first_query);
        const u64 first_row = item.start + first_query;
        T* const to = out + first_row * shape.out_stride + item.head() * D;
        float* const lse_to = lse + first_row * shape.query_heads + item.head();
        if (item.outside()) {
            store_zeros(to, shape.out_stride, rows, MULTIPLYING);
            if (threadIdx.x < rows) lse_to[(u64)threadIdx.x * shape.query_heads] = 0.0f;
            q_ring.release();
            continue;
        }
        const Tile<ROWS> q = at.q(q_ring.stage());
        const int begin = shape.begin(item), end = shape.end(item);
        float s[KEYS / 8][4], acc[D / 8][4];
        u32 p[KEYS / 16][4];
        Softmax softmax(scale);
        clear(acc);
        auto hide = [&](int tile) {
            const int first_key = tile * KEYS;
            if (!all_seen(first_query, ROWS, first_key, KEYS, shape.window)) {
                hide_keys<KEYS>(s, first_query, first_key, shape.window);
            }
        };
        k_ring.await();
        products_begin();
        score<KEYS>(s, q, group_row, at.k(k_ring.stage()));
        products_commit();
        products_wait<0>();
        pin(s);
        k_ring.release();
        hide(begin);
        softmax.absorb<KEYS>(s);
        as_left<KEYS>(p, s);
        for (int tile = begin + 1; tile < end; tile++) {
            k_ring.await();
            pin(acc);
            products_begin();
            score<KEYS>(s, q, group_row, at.k(k_ring.stage()));
            products_commit();
            v_ring.await();
            products_begin();
            blend<KEYS>(acc, p, at.v(v_ring.stage()));
            products_commit();
            products_wait<1>();
            pin(s);
            k_ring.release();
            hide(tile);
            softmax.absorb<KEYS>(s);
            pin(s);
            finish_first(softmax.total[0] + softmax.total[1], shape.window < 1, at.base);
            products_wait<0>();
            pin(acc);
            v_ring.release();
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) acc[n][i] *= softmax.shrink[i / 2];
            }
            as_left<KEYS>(p, s);
        }
        v_ring.await();
        pin(acc);
        products_begin();
        blend<KEYS>(acc, p, at.v(v_ring.stage()));
        products_commit();
        softmax.finish();
        products_wait<0>();
        pin(acc);
        v_ring.release();
        group_barrier(group_row / GROUP_ROWS);  // nobody reads the warpgroup's queries any more
        store(acc, 1.0f / softmax.total[0], 1.0f / softmax.total[1], q, to, shape.out_stride, rows);
        const Lane own;
        if (own.column == 0) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = own.row + 8 * r;
                const float result = softmax.peak[r] * scale + logf(softmax.total[r]);
                if (row < rows) lse_to[(u64)row * shape.query_heads] = result;
            }
        }
        __syncwarp();
        q_ring.release();
    }
}

PLIMSOLL_EXPORT __launch_bounds__(HOPPER_THREADS, 1)
    attention_forward(const T* qkv, const int* bounds, T* out, float* lse, int sequences, int tokens, int query_heads,
                      int kv_heads, float scale, int window) {
    wait_for_previous_kernel();
    const ForwardMemory at;
    const u64 stride = (u64)(query_heads + 2 * kv_heads) * D, out_stride = (u64)query_heads * D;
    const ForwardShape shape = {qkv, query_heads, kv_heads, window, stride, out_stride};
    if (threadIdx.x == 0) {
#pragma unroll
        for (int ring = 0; ring < 3; ring++) at.ring(ring).init();
    }
    __syncthreads();
    if (threadIdx.x >= MULTIPLYING) {
        give_registers<40>();
        forward_fetch(at, shape, Items(bounds, sequences, tokens, ROWS, query_heads, false));
    } else {
        take_registers<232>();
        forward_multiply(at, shape, out, lse, scale);
    }
}
