// Gradients of attention on Hopper, first those of the queries, then those of keys and values. Part of attention.cuh.
#pragma once

#include "attention_pipeline.cuh"

// Rows that items keep, two tiles of them, and smaller tiles that pass by, also in twos, with two numbers for each row of
// either the one or the other.
struct GradientMemory {
    static constexpr u32 KEPT = 2 * Tile<ROWS>::BYTES, PASSING = 2 * Tile<STEP>::BYTES;
    static constexpr u32 STATS = 2 * ROWS * 4;  // of one stage
    u32 base;

    __device__ __forceinline__ GradientMemory() : base((shared_address(memory) + 1023) & ~1023u) {}
    __device__ __forceinline__ Tile<ROWS> kept(u32 stage, int which) const {
        return {base + stage * KEPT + which * Tile<ROWS>::BYTES};
    }
    __device__ __forceinline__ Tile<STEP> passing(u32 stage, int which) const {
        return {base + 2 * KEPT + stage * PASSING + which * Tile<STEP>::BYTES};
    }
    __device__ __forceinline__ u32 lse(u32 stage, int row) const {
        return base + 2 * KEPT + 2 * PASSING + stage * STATS + row * 4;
    }
    __device__ __forceinline__ u32 delta(u32 stage, int row) const { return lse(stage, row) + ROWS * 4; }
    __device__ __forceinline__ u32 item(u32 stage) const { return lse(2, 0) + stage * Item::BYTES; }
    __device__ __forceinline__ Ring kept_ring() const { return {item(2), 0}; }
    __device__ __forceinline__ Ring passing_ring() const { return {item(2) + Ring::BYTES, 0}; }

    __device__ __forceinline__ void init() const {
        if (threadIdx.x == 0) {
            kept_ring().init();
            passing_ring().init();
        }
        __syncthreads();
    }
};

struct GradientShape {
    const T* qkv;
    int query_heads, kv_heads, window;
    float scale;
    u64 stride, out_stride;

    __device__ __forceinline__ GradientShape(const T* qkv, int query_heads, int kv_heads, float scale, int window)
        : qkv(qkv), query_heads(query_heads), kv_heads(kv_heads), window(window), scale(scale),
          stride((u64)(query_heads + 2 * kv_heads) * D), out_stride((u64)query_heads * D) {}

    __device__ __forceinline__ int sharing() const { return query_heads / kv_heads; }
    __device__ __forceinline__ u64 k_column(int kv_head) const { return (query_heads + kv_head) * D; }
    __device__ __forceinline__ u64 v_column(int kv_head) const { return k_column(kv_head) + kv_heads * D; }
};

// Starts an item: announces where there is nothing to fetch.
__device__ __forceinline__ bool something_to_fetch(const Item& item, Fetcher& fetcher, Ring& ring, u32 item_at) {
    fetcher.claim(ring);
    if (fetcher.thread == 0) item.write(item_at);
    if (!item.end() && !item.outside()) return true;
    fetcher.started(ring);
    fetcher.announce();
    return false;
}

// Σ d_out·out of an item's rows, into shared memory and, for the keys' gradients, to `to`. A row is read by as many lanes
// as it has pieces.
__device__ __forceinline__ void item_deltas(int thread, u32 delta_at, const T* out, const T* d_out, u64 stride, int rows,
                                           float* to, int to_stride) {
    constexpr int AT_ONCE = FETCHING / PIECES, TOGETHER = 4;
    const int part = thread % PIECES, first = thread / PIECES;
#pragma unroll 1
    for (int pass = 0; pass < ROWS / AT_ONCE; pass += TOGETHER) {
        uint4 a[TOGETHER], b[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int row = (pass + i) * AT_ONCE + first;
            a[i] = b[i] = make_uint4(0, 0, 0, 0);
            if (row < rows) {
                a[i] = *reinterpret_cast<const uint4*>(out + row * stride + part * 8);
                b[i] = *reinterpret_cast<const uint4*>(d_out + row * stride + part * 8);
            }
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int row = (pass + i) * AT_ONCE + first;
            float sum = dot2(a[i].x, b[i].x, dot2(a[i].y, b[i].y, dot2(a[i].z, b[i].z, dot2(a[i].w, b[i].w, 0.0f))));
#pragma unroll
            for (int apart = PIECES / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(FULL_MASK, sum, apart);
            if (part == 0) {
                store_shared(delta_at + row * 4, sum);
                if (row < rows) to[(u64)row * to_stride] = sum;
            }
        }
    }
}

// Keys that an item of queries sees.
struct KeysOf {
    int begin, end;

    __device__ __forceinline__ KeysOf(const Item& item, int window)
        : begin(max(item.tile * ROWS - window + 1, 0) / STEP),
          end((min((item.tile + 1) * ROWS, item.length) - 1) / STEP + 1) {}
};

__device__ __forceinline__ void queries_fetch(const GradientMemory& at, const GradientShape& shape, Items items,
                                              const T* out, const float* lse, const T* d_out, float* delta) {
    Fetcher fetcher;
    Ring kept = at.kept_ring(), passing = at.passing_ring();
    for (;;) {
        __syncwarp();
        const Item item = items.next();
        if (!something_to_fetch(item, fetcher, kept, at.item(kept.stage()))) {
            if (item.end()) return;
            continue;
        }
        const int first_query = item.tile * ROWS, rows = min(ROWS, item.length - first_query);
        const int head = item.head(), kv_head = head / shape.sharing();
        const u64 first_row = item.start + first_query, first_stat = first_row * shape.query_heads + head;
        const T* const d_from = d_out + first_row * shape.out_stride + head * D;
        const u32 stage = kept.stage();
        at.kept(stage, 0).template fetch<FETCHING>(shape.qkv + first_row * shape.stride + head * D, shape.stride, rows,
                                                   fetcher.thread);
        at.kept(stage, 1).template fetch<FETCHING>(d_from, shape.out_stride, rows, fetcher.thread);
        fetcher.started(kept);
        // Rows that do not exist get chances of zero.
        const bool exists = fetcher.thread < rows;
        const u64 own_stat = first_stat + (u64)fetcher.thread * shape.query_heads;
        store_shared(at.lse(stage, fetcher.thread), exists ? lse[own_stat] * LOG2_E : -MINUS_INFINITY);
        __syncwarp();
        item_deltas(fetcher.thread, at.delta(stage, 0), out + first_row * shape.out_stride + head * D, d_from,
                   shape.out_stride, rows, delta + first_stat, shape.query_heads);
        fetcher.announce();

        const KeysOf keys(item, shape.window);
        const T* const rows_from = shape.qkv + item.start * shape.stride;
        for (int tile = keys.begin; tile < keys.end; tile++) {
            fetcher.claim(passing);
            const int left = item.length - tile * STEP;
            const T* const from = rows_from + tile * STEP * shape.stride;
            at.passing(passing.stage(), 0)
                .template fetch<FETCHING>(from + shape.k_column(kv_head), shape.stride, left, fetcher.thread);
            at.passing(passing.stage(), 1)
                .template fetch<FETCHING>(from + shape.v_column(kv_head), shape.stride, left, fetcher.thread);
            fetcher.started(passing);
        }
    }
}

__device__ __forceinline__ void queries_multiply(const GradientMemory& at, const GradientShape& shape, T* d_qkv) {
    Ring kept = at.kept_ring(), passing = at.passing_ring();
    const Lane own;
    const int group_row = first_group_row();
    const float log2_scale = shape.scale * LOG2_E;
    for (;;) {
        kept.await();
        const Item item = Item::read(at.item(kept.stage()));
        if (item.end()) return;
        const int first_query = item.tile * ROWS, rows = min(ROWS, item.length - first_query);
        T* const to = d_qkv + (item.start + first_query) * shape.stride + item.head() * D;
        if (item.outside()) {
            store_zeros(to, shape.stride, rows, MULTIPLYING);
            kept.release();
            continue;
        }
        const Tile<ROWS> q = at.kept(kept.stage(), 0), d = at.kept(kept.stage(), 1);
        float own_delta[2], own_lse[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            own_lse[r] = load_shared(at.lse(kept.stage(), own.row + 8 * r));
            own_delta[r] = load_shared(at.delta(kept.stage(), own.row + 8 * r));
        }
        float s[STEP / 8][4], d_p[STEP / 8][4], acc[D / 8][4];
        u32 d_s[STEP / 16][4];
        clear(acc);
        const KeysOf keys(item, shape.window);
        for (int tile = keys.begin; tile < keys.end; tile++) {
            passing.await();
            const int first_key = tile * STEP;
            if (!any_seen(first_query + group_row, GROUP_ROWS, first_key, STEP, shape.window)) {
                passing.release();
                continue;
            }
            const Tile<STEP> k = at.passing(passing.stage(), 0), v = at.passing(passing.stage(), 1);
            products_begin();
            score<STEP>(s, q, group_row, k);
            products_commit();
            score<STEP>(d_p, d, group_row, v);
            products_commit();
            products_wait<1>();
            pin(s);
            if (!all_seen(first_query, ROWS, first_key, STEP, shape.window)) {
                hide_keys<STEP>(s, first_query, first_key, shape.window);
            }
#pragma unroll
            for (int n = 0; n < STEP / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] = exp2_fast(fmaf(s[n][i], log2_scale, -own_lse[i / 2]));
            }
            pin(s);
            finish_first(any_bits(s), shape.window < 1, at.base);
            products_wait<0>();
            pin(d_p);
#pragma unroll
            for (int n = 0; n < STEP / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] *= d_p[n][i] - own_delta[i / 2];
            }
            as_left<STEP>(d_s, s);
            pin(acc);
            products_begin();
            blend<STEP>(acc, d_s, k);
            products_commit();
            products_wait<0>();
            pin(acc);
            passing.release();
        }
        group_barrier(group_row / GROUP_ROWS);
        store(acc, shape.scale, shape.scale, q, to, shape.stride, rows);
        __syncwarp();
        kept.release();
    }
}

PLIMSOLL_EXPORT __launch_bounds__(HOPPER_THREADS, 1)
    attention_grad_queries(const T* qkv, const T* out, const float* lse, const T* d_out, const int* bounds, T* d_qkv,
                           float* delta, int sequences, int tokens, int query_heads, int kv_heads, float scale,
                           int window) {
    wait_for_previous_kernel();
    const GradientMemory at;
    const GradientShape shape(qkv, query_heads, kv_heads, scale, window);
    at.init();
    if (threadIdx.x >= MULTIPLYING) {
        give_registers<88>();
        const Items items(bounds, sequences, tokens, ROWS, query_heads, false);
        queries_fetch(at, shape, items, out, lse, d_out, delta);
    } else {
        take_registers<208>();
        queries_multiply(at, shape, d_qkv);
    }
}

// Queries that see an item of keys: from the first key on, to the last that sees the last key.
struct QueriesOf {
    int begin, end;

    __device__ __forceinline__ QueriesOf(const Item& item, int window) {
        const int last_key = min((item.tile + 1) * ROWS, item.length) - 1;
        begin = item.tile * ROWS / STEP;
        end = (last_key + min(item.length - 1 - last_key, window - 1)) / STEP + 1;
    }
};

__device__ __forceinline__ void keys_fetch(const GradientMemory& at, const GradientShape& shape, Items items,
                                           const float* lse, const T* d_out, const float* delta) {
    Fetcher fetcher;
    Ring kept = at.kept_ring(), passing = at.passing_ring();
    for (;;) {
        __syncwarp();
        const Item item = items.next();
        if (!something_to_fetch(item, fetcher, kept, at.item(kept.stage()))) {
            if (item.end()) return;
            continue;
        }
        const int first_key = item.tile * ROWS, rows = item.length - first_key, kv_head = item.head();
        const T* const from = shape.qkv + (item.start + first_key) * shape.stride;
        at.kept(kept.stage(), 0)
            .template fetch<FETCHING>(from + shape.k_column(kv_head), shape.stride, rows, fetcher.thread);
        at.kept(kept.stage(), 1)
            .template fetch<FETCHING>(from + shape.v_column(kv_head), shape.stride, rows, fetcher.thread);
        fetcher.started(kept);
        const QueriesOf queries(item, shape.window);
        const int first_head = kv_head * shape.sharing();
        for (int head = first_head; head < first_head + shape.sharing(); head++) {
            for (int tile = queries.begin; tile < queries.end; tile++) {
                fetcher.claim(passing);
                const u32 stage = passing.stage();
                const int left = item.length - tile * STEP, thread = fetcher.thread;
                const u64 row = item.start + tile * STEP;
                at.passing(stage, 0)
                    .template fetch<FETCHING>(shape.qkv + row * shape.stride + head * D, shape.stride, left, thread);
                at.passing(stage, 1)
                    .template fetch<FETCHING>(d_out + row * shape.out_stride + head * D, shape.out_stride, left, thread);
                if (thread < STEP && thread < left) {
                    copy4(at.lse(stage, thread), lse + (row + thread) * shape.query_heads + head);
                    copy4(at.delta(stage, thread), delta + (row + thread) * shape.query_heads + head);
                } else if (thread < STEP) {
                    store_shared(at.lse(stage, thread), -MINUS_INFINITY);
                    store_shared(at.delta(stage, thread), 0.0f);
                }
                fetcher.started(passing);
            }
        }
    }
}

__device__ __forceinline__ void keys_multiply(const GradientMemory& at, const GradientShape& shape, T* d_qkv) {
    Ring kept = at.kept_ring(), passing = at.passing_ring();
    const Lane own;
    const int group_row = first_group_row();
    const float log2_scale = shape.scale * LOG2_E;
    for (;;) {
        kept.await();
        const Item item = Item::read(at.item(kept.stage()));
        if (item.end()) return;
        const int first_key = item.tile * ROWS, rows = min(ROWS, item.length - first_key), kv_head = item.head();
        T* const to = d_qkv + (item.start + first_key) * shape.stride;
        if (item.outside()) {
            store_zeros(to + shape.k_column(kv_head), shape.stride, rows, MULTIPLYING);
            store_zeros(to + shape.v_column(kv_head), shape.stride, rows, MULTIPLYING);
            kept.release();
            continue;
        }
        const Tile<ROWS> k = at.kept(kept.stage(), 0), v = at.kept(kept.stage(), 1);
        float d_k[D / 8][4], d_v[D / 8][4], s[STEP / 8][4], d_p[STEP / 8][4];
        u32 left[STEP / 16][4], right[STEP / 16][4];
        clear(d_k);
        clear(d_v);
        const QueriesOf queries(item, shape.window);
        const int turns = shape.sharing() * (queries.end - queries.begin);
        int tile = queries.begin;
        for (int turn = 0; turn < turns; turn++) {
            passing.await();
            const int first_query = tile * STEP;
            if (++tile == queries.end) tile = queries.begin;
            if (!any_seen(first_query, STEP, first_key + group_row, GROUP_ROWS, shape.window)) {
                passing.release();
                continue;
            }
            const u32 stage = passing.stage();
            const Tile<STEP> q = at.passing(stage, 0), d = at.passing(stage, 1);
            products_begin();
            score<STEP>(s, k, group_row, q);
            products_commit();
            score<STEP>(d_p, v, group_row, d);
            products_commit();
            products_wait<1>();
            pin(s);
            if (!all_seen(first_query, STEP, first_key, ROWS, shape.window)) {
                hide_queries<STEP>(s, first_key, first_query, shape.window);
            }
#pragma unroll
            for (int n = 0; n < STEP / 8; n++) {
                const float2 column_lse = load_shared_pair(at.lse(stage, n * 8 + own.column));
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[n][i] = exp2_fast(fmaf(s[n][i], log2_scale, -LOG2_E * (i % 2 ? column_lse.y : column_lse.x)));
                }
            }
            as_left<STEP>(left, s);
            pin(d_v);
            products_begin();
            blend<STEP>(d_v, left, d);
            products_commit();
            products_wait<1>();
            pin(d_p);
#pragma unroll
            for (int n = 0; n < STEP / 8; n++) {
                const float2 column_delta = load_shared_pair(at.delta(stage, n * 8 + own.column));
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] *= d_p[n][i] - (i % 2 ? column_delta.y : column_delta.x);
            }
            as_left<STEP>(right, s);
            pin(d_k);
            products_begin();
            blend<STEP>(d_k, right, q);
            products_commit();
            products_wait<0>();
            pin(d_v);
            pin(d_k);
            passing.release();
        }
        group_barrier(group_row / GROUP_ROWS);
        store(d_k, shape.scale, shape.scale, k, to + shape.k_column(kv_head), shape.stride, rows);
        store(d_v, 1.0f, 1.0f, v, to + shape.v_column(kv_head), shape.stride, rows);
        __syncwarp();
        kept.release();
    }
}

PLIMSOLL_EXPORT __launch_bounds__(HOPPER_THREADS, 1)
    attention_grad_keys(const T* qkv, const float* lse, const T* d_out, const int* bounds, T* d_qkv, const float* delta,
                        int sequences, int tokens, int query_heads, int kv_heads, float scale, int window) {
    wait_for_previous_kernel();
    const GradientMemory at;
    const GradientShape shape(qkv, query_heads, kv_heads, scale, window);
    at.init();
    if (threadIdx.x >= MULTIPLYING) {
        give_registers<40>();
        keys_fetch(at, shape, Items(bounds, sequences, tokens, ROWS, kv_heads, true), lse, d_out, delta);
    } else {
        take_registers<232>();
        keys_multiply(at, shape, d_qkv);
    }
}
