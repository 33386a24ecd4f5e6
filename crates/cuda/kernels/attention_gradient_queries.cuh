// Gradients of the queries on all cards but Hopper. Part of attention.cuh.

// A block is one head of 64 queries for each of its warpgroups.
template <int GROUPS>
__device__ __forceinline__ void grad_queries(const T* qkv, const T* out, const float* lse, const T* d_out,
                                             const int* bounds, T* d_qkv, float* delta, int sequences, int tokens,
                                             int query_heads, int kv_heads, float scale, int window) {
    constexpr int ROWS = GROUPS * GROUP_ROWS, THREADS = GROUPS * 128;
    const Place place = locate(bounds, sequences, tokens, ROWS, blockIdx.y, false);
    if (!place.found) return;
    const int head = blockIdx.x, kv_head = head / (query_heads / kv_heads);
    const u64 stride = (u64)(query_heads + 2 * kv_heads) * D, out_stride = (u64)query_heads * D;
    const int first_query = place.tile * ROWS, rows = min(ROWS, place.length - first_query);
    const u64 first_row = place.start + first_query;
    T* const to = d_qkv + first_row * stride + head * D;
    if (place.outside) {
        store_zeros(to, stride, rows);
        return;
    }

    const u32 base = (shared_address(memory) + 1023) & ~1023u;
    const Tile<ROWS> q = {base}, d = {base + Tile<ROWS>::BYTES};
    const u32 stages = base + 2 * Tile<ROWS>::BYTES;
    const T* const k_from = qkv + place.start * stride + (query_heads + kv_head) * D;
    const T* const v_from = k_from + kv_heads * D;
    const int begin = max(first_query - window + 1, 0) / STEP, end = (first_query + rows - 1) / STEP + 1;
    auto k_tile = [&](int tile) { return Tile<STEP>{stages + (tile - begin) % 2 * 2 * Tile<STEP>::BYTES}; };
    auto v_tile = [&](int tile) { return Tile<STEP>{k_tile(tile).at + Tile<STEP>::BYTES}; };
    auto fetch = [&](int tile) {
        k_tile(tile).template fetch<THREADS>(k_from + tile * STEP * stride, stride, place.length - tile * STEP);
        v_tile(tile).template fetch<THREADS>(v_from + tile * STEP * stride, stride, place.length - tile * STEP);
    };

    const T* const d_from = d_out + first_row * out_stride + head * D;
    q.template fetch<THREADS>(qkv + first_row * stride + head * D, stride, rows);
    d.template fetch<THREADS>(d_from, out_stride, rows);
    fetch(begin);
    copies_commit();
    const u64 first_stat = first_row * query_heads + head;
    float own_delta[2], own_lse[2];
    row_deltas(own_delta, out + first_row * out_stride + head * D, d_from, out_stride, rows, delta + first_stat,
               query_heads);
    const Lane own;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = own.row + 8 * r;
        // Rows that do not exist get chances of zero.
        own_lse[r] = row < rows ? lse[first_stat + (u64)row * query_heads] * LOG2_E : -MINUS_INFINITY;
    }

    const int group_row = first_group_row();
    const float log2_scale = scale * LOG2_E;
    float s[STEP / 8][4], d_p[STEP / 8][4], acc[D / 8][4];
    u32 d_s[STEP / 16][4];
    clear(acc);
    for (int tile = begin; tile < end; tile++) {
        copies_wait<0>();
        __syncthreads();
        const int first_key = tile * STEP;
        const bool needed = any_seen(first_query + group_row, GROUP_ROWS, first_key, STEP, window);
        if (tile + 1 < end) fetch(tile + 1);
        copies_commit();
        if (!needed) continue;
        score<STEP>(s, q, group_row, k_tile(tile));
        score<STEP>(d_p, d, group_row, v_tile(tile));
        if (!all_seen(first_query, ROWS, first_key, STEP, window)) hide_keys<STEP>(s, first_query, first_key, window);
#pragma unroll
        for (int n = 0; n < STEP / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] = exp2_fast(fmaf(s[n][i], log2_scale, -own_lse[i / 2]));
        }
#pragma unroll
        for (int n = 0; n < STEP / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] *= d_p[n][i] - own_delta[i / 2];
        }
        as_left<STEP>(d_s, s);
        blend<STEP>(acc, d_s, k_tile(tile));
    }
    __syncthreads();
    store(acc, scale, scale, q, to, stride, rows);
}

PLIMSOLL_EXPORT __launch_bounds__(256, 1)
    attention_grad_queries(const T* qkv, const T* out, const float* lse, const T* d_out, const int* bounds, T* d_qkv,
                           float* delta, int sequences, int tokens, int query_heads, int kv_heads, float scale,
                           int window) {
    wait_for_previous_kernel();
    grad_queries<2>(qkv, out, lse, d_out, bounds, d_qkv, delta, sequences, tokens, query_heads, kv_heads, scale, window);
}

// The same bits from twice as many blocks of half the size, two on a multiprocessor: while the one waits for its queries
// the other multiplies.
PLIMSOLL_EXPORT __launch_bounds__(128, 2)
    attention_grad_queries_small(const T* qkv, const T* out, const float* lse, const T* d_out, const int* bounds,
                                 T* d_qkv, float* delta, int sequences, int tokens, int query_heads, int kv_heads,
                                 float scale, int window) {
    wait_for_previous_kernel();
    grad_queries<1>(qkv, out, lse, d_out, bounds, d_qkv, delta, sequences, tokens, query_heads, kv_heads, scale, window);
}
