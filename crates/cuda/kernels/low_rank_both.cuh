// Of several adapters j that share a wide gradient: dh_j = dy_j·b_j and db_j = dy_jᵀ·h_j, where the rank is small,
// in one reading of dy, which is all that counts.
//
// A block has some columns of one adapter and walks down its rows, 16 at a time. A warp keeps db and b of its columns
// in registers; what its columns add to dh goes through shared memory, where those of all warps are summed. Blocks
// leave their sums behind, and `both_sums` adds them up in their order.
#pragma once

#include "low_rank_spans.cuh"
#include "low_rank_tile.cuh"

// RT: sixteens in the rank. The sizes are those of `Both` in src/low_rank.rs.
template <int RT> struct Both {
    static constexpr int RANK = 16 * RT;
    static constexpr int STAGES = 4;
    static constexpr int WARP_COLS = 128 / RT;
    static constexpr int THREADS_MAX = 256;
};

// `low_rank_sums` is [blocks, rows, RANK] and `weight_sums` [splits, weight rows, RANK]; the rows are those of this launch.
template <typename T, int RT>
__device__ __forceinline__ void both(const Spans& spans, const T* wide, u64 stride, const T* low_rank, u32 low_rank_stride,
                                     const T* weight, float* low_rank_sums, float* weight_sums, u32 rows, u32 weight_rows,
                                     u32 rank, u32 block_rows) {
    using Shape = Both<RT>;
    using Tile = WideTile<Shape::WARP_COLS>;
    constexpr int RANK = Shape::RANK, STAGES = Shape::STAGES, STEPS = Shape::WARP_COLS / 16;
    extern __shared__ __align__(16) u8 shared[];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const u32 g = lane / 4, t = lane % 4;
    u32 block = 0;
    const Span span = spans.of_block(blockIdx.x, block);
    const u32 col0 = (block * warps + warp) * Shape::WARP_COLS;
    const u32 cols = col0 < span.len ? min(u32(span.len) - col0, u32(Shape::WARP_COLS)) : 0;
    const u32 begin = blockIdx.y * block_rows, end = min(begin + block_rows, rows);

    const u32 stage_bytes = warps * Tile::BYTES + LowRankTile<RT>::BYTES;
    const u32 ring = shared_address(shared);
    float* sums = reinterpret_cast<float*>(shared + STAGES * stage_bytes);
    const T* wide_at = wide + span.start + col0;
    const T* low_rank_at = low_rank + span.low_rank;
    const auto tile_of = [&](u32 stage) { return Tile{ring + stage * stage_bytes + warp * Tile::BYTES}; };
    const auto low_rank_of = [&](u32 stage) { return LowRankTile<RT>{ring + stage * stage_bytes + warps * Tile::BYTES}; };
    const auto fetch = [&](u32 row0, u32 stage) {
        if (row0 < end) {
            tile_of(stage).fetch(wide_at + row0 * stride, stride, end - row0, cols);
            low_rank_of(stage).fetch(low_rank_at + u64(row0) * low_rank_stride, low_rank_stride, end - row0, rank);
        }
        copies_commit();
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(begin + 16 * s, s);

    // b as the right factor of dy·b: of each sixteen columns and eight ranks, columns 2t, 2t + 1 and 8 more of rank g.
    u32 b[STEPS][2 * RT][2];
    const T* weight_at = weight + (span.row + col0) * rank;
    const auto entry = [&](u32 col, u32 n) -> u32 {
        if (col >= cols || n >= rank) return 0;
        return *reinterpret_cast<const unsigned short*>(weight_at + col * rank + n);
    };
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
#pragma unroll
        for (int j = 0; j < 2 * RT; j++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 col = 16 * s + 8 * half + 2 * t, n = 8 * j + g;
                b[s][j][half] = entry(col, n) | entry(col + 1, n) << 16;
            }
        }
    }

    // Adds up what the warps left of the sixteen rows before `row0`.
    const auto pass_on = [&](u32 row0, u32 turn) {
        const float* from = sums + turn * warps * 16 * RANK;
        float* to = low_rank_sums + (u64(blockIdx.x) * rows + row0) * RANK;
        for (u32 i = 4 * threadIdx.x; i < 16 * RANK; i += 4 * blockDim.x) {
            float4 sum = {};
            for (u32 w = 0; w < warps; w++) add_to(sum, *reinterpret_cast<const float4*>(from + w * 16 * RANK + i));
            if (row0 + i / RANK < end) *reinterpret_cast<float4*>(to + i) = sum;
        }
    };

    float acc[RT][2 * STEPS][4] = {};
    u32 stage = 0, turn = 0;
    for (u32 row0 = begin; row0 < end; row0 += 16) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        fetch(row0 + 16 * (STAGES - 1), stage == 0 ? STAGES - 1 : stage - 1);
        if (row0 > begin) pass_on(row0 - 16, turn ^ 1);
        const Tile tile = tile_of(stage);
        u32 h[RT][4];
        low_rank_of(stage).load_transposed(h);
        float dh[2 * RT][4] = {};
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            u32 x[4], y[4];
            load_matrices(x, tile.step(s));
            load_matrices_transposed(y, tile.step(s));
#pragma unroll
            for (int j = 0; j < 2 * RT; j++) mma<T>(dh[j], x, b[s][j][0], b[s][j][1]);
#pragma unroll
            for (int m = 0; m < RT; m++) {
                mma<T>(acc[m][2 * s], h[m], y[0], y[1]);
                mma<T>(acc[m][2 * s + 1], h[m], y[2], y[3]);
            }
        }
        float* mine = sums + (turn * warps + warp) * 16 * RANK;
#pragma unroll
        for (int j = 0; j < 2 * RT; j++) {
            float* to = mine + g * RANK + 8 * j + 2 * t;
            *reinterpret_cast<float2*>(to) = make_float2(dh[j][0], dh[j][1]);
            *reinterpret_cast<float2*>(to + 8 * RANK) = make_float2(dh[j][2], dh[j][3]);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        turn ^= 1;
    }
    __syncthreads();
    if (begin < end) pass_on(begin + (end - begin - 1) / 16 * 16, turn ^ 1);

    float* to = weight_sums + (u64(blockIdx.y) * weight_rows + span.row + col0) * RANK;
#pragma unroll
    for (int m = 0; m < RT; m++) {
#pragma unroll
        for (int j = 0; j < 2 * STEPS; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 col = 8 * j + 2 * t + i % 2, n = 16 * m + i / 2 * 8 + g;
                if (col < cols) to[col * RANK + n] = acc[m][j][i];
            }
        }
    }
}

// What `both` left behind, summed up, four numbers for each lane: the first `low_rank_blocks` make `low_rank`, the others
// `grad`, which is added to and is in float32 if `wide_grad`, else as T.
template <typename T, int RANK>
__device__ __forceinline__ void both_sums(const Spans& spans, const float* low_rank_sums, const float* weight_sums, T* low_rank,
                                          u32 low_rank_stride, void* grad, bool wide_grad, u32 rows, u32 weight_rows,
                                          u32 splits, u32 rank, float alpha) {
    const u32 quads = rank / 4, in_row = low_rank_stride / 4, low_rank_blocks = (rows * in_row + WARP - 1) / WARP;
    const u32 lane = threadIdx.x % WARP;
    const bool first_warp = threadIdx.x < WARP;
    if (blockIdx.x < low_rank_blocks) {
        const u32 item = blockIdx.x * WARP + lane;
        const u32 row = item / in_row, at = item % in_row, adapter = at / quads, n = at % quads * 4;
        const bool valid = row < rows;
        const u32 first = adapter == 0 ? 0 : u32(spans.spans[adapter - 1].blocks_end);
        const u32 last = u32(spans.spans[adapter].blocks_end);
        const float* parts = low_rank_sums + (u64(first) * rows + row) * RANK + n;
        const float4 sum = add_parts(parts, u64(rows) * RANK, last - first, valid);
        if (valid && first_warp) store4(low_rank + u64(row) * low_rank_stride + 4 * at, alpha, sum, float4{});
    } else {
        const u32 item = (blockIdx.x - low_rank_blocks) * WARP + lane;
        const u32 row = item / quads, n = item % quads * 4;
        const bool valid = row < weight_rows, mine = valid && first_warp;
        const u64 at = u64(row) * rank + n;
        const float4 old = mine ? load_gradient<T>(grad, wide_grad, at) : float4{};
        const float4 sum = add_parts(weight_sums + u64(row) * RANK + n, u64(weight_rows) * RANK, splits, valid);
        if (mine) store_gradient<T>(grad, wide_grad, at, alpha, sum, old);
    }
}
