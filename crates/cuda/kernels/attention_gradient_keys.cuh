// Gradients of keys and values by blocks that have one piece of work each: on all cards but Hopper, and there where the
// blocks that stay would be too few. Part of attention.cuh.

// A block is one key head of 64 keys for each of its warpgroups; the query heads that share it follow one
// after another.
template <int GROUPS>
__device__ __forceinline__ void grad_keys(const T* qkv, const float* lse, const T* d_out, const int* bounds, T* d_qkv,
                                          const float* delta, int sequences, int tokens, int query_heads, int kv_heads,
                                          float scale, int window) {
    constexpr int ROWS = GROUPS * GROUP_ROWS, THREADS = GROUPS * 128;
    const Place place = locate(bounds, sequences, tokens, ROWS, blockIdx.y, true);
    if (!place.found) return;
    const int kv_head = blockIdx.x, sharing = query_heads / kv_heads;
    const u64 stride = (u64)(query_heads + 2 * kv_heads) * D, out_stride = (u64)query_heads * D;
    const int first_key = place.tile * ROWS, rows = min(ROWS, place.length - first_key);
    const u64 first_row = place.start + first_key;
    const u64 k_column = (query_heads + kv_head) * D, v_column = k_column + kv_heads * D;
    T* const to = d_qkv + first_row * stride;
    if (place.outside) {
        store_zeros(to + k_column, stride, rows);
        store_zeros(to + v_column, stride, rows);
        return;
    }

    const u32 base = (shared_address(memory) + 1023) & ~1023u;
    const Tile<ROWS> k = {base}, v = {base + Tile<ROWS>::BYTES};
    const u32 stages = base + 2 * Tile<ROWS>::BYTES, stats = stages + 4 * Tile<STEP>::BYTES;
    auto q_tile = [&](int stage) { return Tile<STEP>{stages + stage * 2 * Tile<STEP>::BYTES}; };
    auto d_tile = [&](int stage) { return Tile<STEP>{q_tile(stage).at + Tile<STEP>::BYTES}; };
    auto lse_at = [&](int stage, int query) { return stats + (stage * 2 * STEP + query) * 4; };
    auto delta_at = [&](int stage, int query) { return lse_at(stage, query) + STEP * 4; };
    auto fetch = [&](int stage, int head, int tile) {
        const int left = place.length - tile * STEP, thread = threadIdx.x;
        const u64 row = place.start + tile * STEP;
        q_tile(stage).template fetch<THREADS>(qkv + row * stride + head * D, stride, left);
        d_tile(stage).template fetch<THREADS>(d_out + row * out_stride + head * D, out_stride, left);
        if (thread < STEP && thread < left) {
            copy4(lse_at(stage, thread), lse + (row + thread) * query_heads + head);
            copy4(delta_at(stage, thread), delta + (row + thread) * query_heads + head);
        } else if (thread < STEP) {
            store_shared(lse_at(stage, thread), -MINUS_INFINITY);
            store_shared(delta_at(stage, thread), 0.0f);
        }
    };

    // Queries from the first key on, to the last that sees the last key.
    const int last_key = first_key + rows - 1;
    const int last_query = last_key + min(place.length - 1 - last_key, window - 1);
    const int begin = first_key / STEP, end = last_query / STEP + 1;
    k.template fetch<THREADS>(qkv + first_row * stride + k_column, stride, rows);
    v.template fetch<THREADS>(qkv + first_row * stride + v_column, stride, rows);
    fetch(0, kv_head * sharing, begin);
    copies_commit();

    const Lane own;
    const int group_row = first_group_row();
    const float log2_scale = scale * LOG2_E;
    float d_k[D / 8][4], d_v[D / 8][4], s[STEP / 8][4], d_p[STEP / 8][4];
    u32 left[STEP / 16][4], right[STEP / 16][4];
    clear(d_k);
    clear(d_v);
    int head = kv_head * sharing, tile = begin;
    const int heads_end = head + sharing;
    for (int stage = 0; head < heads_end; stage ^= 1) {
        const int first_query = tile * STEP;
        copies_wait<0>();
        publish();
        __syncthreads();
        if (++tile == end) tile = begin, head++;
        auto fetch_next = [&] {
            if (head < heads_end) fetch(stage ^ 1, head, tile);
            copies_commit();
        };
        const bool needed = any_seen(first_query, STEP, first_key + group_row, GROUP_ROWS, window);
        if (!ATTENTION_WGMMA || !needed) fetch_next();
        if (!needed) continue;
        products_begin();
        score<STEP>(s, k, group_row, q_tile(stage));
        products_commit();
        score<STEP>(d_p, v, group_row, d_tile(stage));
        products_commit();
        if (ATTENTION_WGMMA) fetch_next();
        products_wait<1>();
        pin(s);
        const bool masked = !all_seen(first_query, STEP, first_key, ROWS, window);
        if (masked) hide_queries<STEP>(s, first_key, first_query, window);
#pragma unroll
        for (int n = 0; n < STEP / 8; n++) {
            const float2 column_lse = load_shared_pair(lse_at(stage, n * 8 + own.column));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[n][i] = exp2_fast(fmaf(s[n][i], log2_scale, -LOG2_E * (i % 2 ? column_lse.y : column_lse.x)));
            }
        }
        as_left<STEP>(left, s);
        pin(d_v);
        products_begin();
        blend<STEP>(d_v, left, d_tile(stage));
        products_commit();
        products_wait<1>();
        pin(d_p);
#pragma unroll
        for (int n = 0; n < STEP / 8; n++) {
            const float2 column_delta = load_shared_pair(delta_at(stage, n * 8 + own.column));
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] *= d_p[n][i] - (i % 2 ? column_delta.y : column_delta.x);
        }
        as_left<STEP>(right, s);
        pin(d_k);
        products_begin();
        blend<STEP>(d_k, right, q_tile(stage));
        products_commit();
        products_wait<0>();
        pin(d_v);
        pin(d_k);
    }
    __syncthreads();
    store(d_k, scale, scale, k, to + k_column, stride, rows);
    store(d_v, 1.0f, 1.0f, v, to + v_column, stride, rows);
}

#if !ATTENTION_WGMMA
PLIMSOLL_EXPORT __launch_bounds__(256, 1)
    attention_grad_keys(const T* qkv, const float* lse, const T* d_out, const int* bounds, T* d_qkv, const float* delta,
                        int sequences, int tokens, int query_heads, int kv_heads, float scale, int window) {
    wait_for_previous_kernel();
    grad_keys<2>(qkv, lse, d_out, bounds, d_qkv, delta, sequences, tokens, query_heads, kv_heads, scale, window);
}

#endif

// The same bits from twice as many blocks of half the size, for few key heads on many multiprocessors. Reads
// queries twice as often.
PLIMSOLL_EXPORT __launch_bounds__(128, 2)
    attention_grad_keys_small(const T* qkv, const float* lse, const T* d_out, const int* bounds, T* d_qkv,
                              const float* delta, int sequences, int tokens, int query_heads, int kv_heads, float scale,
                              int window) {
    wait_for_previous_kernel();
    grad_keys<1>(qkv, lse, d_out, bounds, d_qkv, delta, sequences, tokens, query_heads, kv_heads, scale, window);
}
