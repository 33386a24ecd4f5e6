// Attention itself, on all cards but Hopper: a block is one head of 128 queries. Part of attention.cuh.

// Scores of the next keys are computed beside the sum over the last ones' values.
PLIMSOLL_EXPORT __launch_bounds__(THREADS, 1)
    attention_forward(const T* qkv, const int* bounds, T* out, float* lse, int sequences, int tokens, int query_heads,
                      int kv_heads, float scale, int window) {
    wait_for_previous_kernel();
    constexpr int KEYS = 64;  // at a time
    const Place place = locate(bounds, sequences, tokens, ROWS, blockIdx.y, false);
    if (!place.found) return;
    const int head = blockIdx.x, kv_head = head / (query_heads / kv_heads);
    const u64 stride = (u64)(query_heads + 2 * kv_heads) * D, out_stride = (u64)query_heads * D;
    const int first_query = place.tile * ROWS, rows = min(ROWS, place.length - first_query);
    const u64 first_row = place.start + first_query;
    T* const to = out + first_row * out_stride + head * D;
    if (place.outside) {
        store_zeros(to, out_stride, rows);
        if (threadIdx.x < rows) lse[(first_row + threadIdx.x) * query_heads + head] = 0.0f;
        return;
    }

    const u32 base = (shared_address(memory) + 1023) & ~1023u;
    const Tile<ROWS> q = {base};
    const u32 k_base = base + Tile<ROWS>::BYTES, v_base = k_base + 2 * Tile<KEYS>::BYTES;
    const T* const k_from = qkv + place.start * stride + (query_heads + kv_head) * D;
    const T* const v_from = k_from + kv_heads * D;
    const int begin = max(first_query - window + 1, 0) / KEYS, end = (first_query + rows - 1) / KEYS + 1;
    auto k_tile = [&](int tile) { return Tile<KEYS>{k_base + (tile - begin) % 2 * Tile<KEYS>::BYTES}; };
    auto v_tile = [&](int tile) { return Tile<KEYS>{v_base + (tile - begin) % 2 * Tile<KEYS>::BYTES}; };
    auto fetch_k = [&](int tile) {
        k_tile(tile).fetch(k_from + tile * KEYS * stride, stride, place.length - tile * KEYS);
    };
    auto fetch_v = [&](int tile) {
        v_tile(tile).fetch(v_from + tile * KEYS * stride, stride, place.length - tile * KEYS);
    };

    q.fetch(qkv + first_row * stride + head * D, stride, rows);
    fetch_k(begin);
    copies_commit();
    if (begin + 1 < end) fetch_k(begin + 1);
    fetch_v(begin);
    copies_commit();

    const int group_row = first_group_row();
    // The first warpgroup may see less than the second.
    const int group_end = min(end, (first_query + group_row + GROUP_ROWS - 1) / KEYS + 1);
    float s[KEYS / 8][4], acc[D / 8][4];
    u32 p[KEYS / 16][4];
    Softmax softmax(scale);
    clear(acc);
    copies_wait<1>();
    __syncthreads();
    score<KEYS>(s, q, group_row, k_tile(begin));
    if (!all_seen(first_query, ROWS, begin * KEYS, KEYS, window)) hide_keys<KEYS>(s, first_query, begin * KEYS, window);
    softmax.absorb<KEYS>(s);
    as_left<KEYS>(p, s);

    for (int tile = begin; tile + 1 < end; tile++) {
        copies_wait<0>();
        __syncthreads();
        // Keys of `tile` and values of the tile before it have been used by all warps.
        if (tile + 2 < end) fetch_k(tile + 2);
        fetch_v(tile + 1);
        copies_commit();
        if (tile + 1 >= group_end) continue;
        score<KEYS>(s, q, group_row, k_tile(tile + 1));
        blend<KEYS>(acc, p, v_tile(tile));
        const int first_key = (tile + 1) * KEYS;
        if (!all_seen(first_query, ROWS, first_key, KEYS, window)) hide_keys<KEYS>(s, first_query, first_key, window);
        softmax.absorb<KEYS>(s);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) acc[n][i] *= softmax.shrink[i / 2];
        }
        as_left<KEYS>(p, s);
    }
    copies_wait<0>();
    __syncthreads();
    blend<KEYS>(acc, p, v_tile(group_end - 1));

    softmax.finish();
    // Nobody reads the queries any more: all scores were finished before the last barrier.
    store(acc, 1.0f / softmax.total[0], 1.0f / softmax.total[1], q, to, out_stride, rows);
    const Lane own;
    if (own.column == 0) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = own.row + 8 * r;
            const float result = softmax.peak[r] * scale + logf(softmax.total[r]);
            if (row < rows) lse[(first_row + row) * query_heads + head] = result;
        }
    }
}
