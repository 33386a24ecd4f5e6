// grad [rank, cols] += α·low-rank [rows, rank]ᵀ·drop(wide [rows, cols]), where the rank is small: the wide matrix is read
// once and nothing else counts.
//
// A block has some columns, a run of them to each warp, and walks down its rows, 16 at a time. A lane drops what it copied
// itself. Blocks leave their sums behind, and `gradient_sums` adds them up in their order.
#pragma once

#include "low_rank_tile.cuh"

// RT: sixteens in the rank. The sizes are those of `Gradient` in src/low_rank.rs.
template <int RT> struct Gradient {
    static constexpr int RANK = 16 * RT;
    static constexpr int STAGES = 4;
    static constexpr int WARP_COLS = RT == 1 ? 128 : 64;
    static constexpr int THREADS_MAX = 256;
    static constexpr int IDS_BYTES = 64;
};

// `sums` is [splits, RANK, cols].
template <typename T, int RT>
__device__ __forceinline__ void gradient(const T* low_rank, const T* wide, u64 stride, float* sums, u32 rows, u32 cols,
                                         u32 rank, u32 block_rows, Dropping dropping) {
    using Shape = Gradient<RT>;
    using Tile = WideTile<Shape::WARP_COLS>;
    constexpr int STAGES = Shape::STAGES, STEPS = Shape::WARP_COLS / 16;
    extern __shared__ __align__(16) u8 shared[];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const u32 g = lane / 4, t = lane % 4;
    const u32 col0 = (blockIdx.x * warps + warp) * Shape::WARP_COLS;
    const u32 own_cols = col0 < cols ? min(cols - col0, u32(Shape::WARP_COLS)) : 0;
    const u32 begin = blockIdx.y * block_rows, end = min(begin + block_rows, rows);
    const u32 stage_bytes = warps * Tile::BYTES + LowRankTile<RT>::BYTES + Shape::IDS_BYTES;
    const u32 ring = shared_address(shared);
    const auto tile_of = [&](u32 stage) { return Tile{ring + stage * stage_bytes + warp * Tile::BYTES}; };
    const auto low_rank_of = [&](u32 stage) { return LowRankTile<RT>{ring + stage * stage_bytes + warps * Tile::BYTES}; };
    const auto ids_of = [&](u32 stage) { return low_rank_of(stage).at + LowRankTile<RT>::BYTES; };
    const auto fetch = [&](u32 row0, u32 stage) {
        if (row0 < end) {
            tile_of(stage).fetch(wide + row0 * stride + col0, stride, end - row0, own_cols);
            low_rank_of(stage).fetch(low_rank + u64(row0) * rank, rank, end - row0, rank);
            if (dropping.any() && warp == warps - 1 && lane < 16) {
                copy4(ids_of(stage) + lane * 4, dropping.row_ids + row0 + lane, row0 + lane < end);
            }
        }
        copies_commit();
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(begin + 16 * s, s);

    const Mask mask = dropping.mask();
    const u32 limit = dropping.limit();
    float acc[RT][2 * STEPS][4] = {};
    u32 stage = 0;
    for (u32 row0 = begin; row0 < end; row0 += 16) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        fetch(row0 + 16 * (STAGES - 1), stage == 0 ? STAGES - 1 : stage - 1);
        const Tile tile = tile_of(stage);
        if (dropping.any()) {
            const RowDraw draw(mask, load_shared4(ids_of(stage) + lane % 16 * 4));
            // Some at a time, for an access may not pass another.
            constexpr int SOME = 4;
#pragma unroll
            for (int first = 0; first < Tile::OWN; first += SOME) {
                u32 words[SOME][4];
#pragma unroll
                for (int i = 0; i < SOME; i++) load_shared16(words[i], tile.own(first + i));
#pragma unroll
                for (int i = 0; i < SOME; i++) {
                    const u32 row = Tile::own_row(first + i), piece = Tile::own_piece(first + i);
                    drop8(words[i], draw.of_lane(row), col0 + 8 * piece, limit);
                }
#pragma unroll
                for (int i = 0; i < SOME; i++) store_shared16(tile.own(first + i), words[i]);
            }
            __syncwarp();
        }
        u32 h[RT][4];
        low_rank_of(stage).load_transposed(h);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            u32 y[4];
            load_matrices_transposed(y, tile.step(s));
#pragma unroll
            for (int m = 0; m < RT; m++) {
                mma<T>(acc[m][2 * s], h[m], y[0], y[1]);
                mma<T>(acc[m][2 * s + 1], h[m], y[2], y[3]);
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    float* to = sums + u64(blockIdx.y) * Shape::RANK * cols + col0;
#pragma unroll
    for (int m = 0; m < RT; m++) {
#pragma unroll
        for (int j = 0; j < 2 * STEPS; j++) {
            const u32 col = 8 * j + 2 * t;
            if (col >= own_cols) continue;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float* at = to + u64(16 * m + 8 * half + g) * cols + col;
                *reinterpret_cast<float2*>(at) = make_float2(acc[m][j][2 * half], acc[m][j][2 * half + 1]);
            }
        }
    }
}

// What `gradient` left behind, added to `grad`, which is in float32 if `wide_grad`, else as T: four numbers for each lane.
template <typename T, int RANK>
__device__ __forceinline__ void gradient_sums(const float* sums, void* grad, bool wide_grad, u32 cols, u32 splits,
                                              u32 rank, float alpha) {
    const u64 at = (u64(blockIdx.x) * WARP + threadIdx.x % WARP) * 4;
    const bool valid = at < u64(rank) * cols, mine = valid && threadIdx.x < WARP;
    const float4 old = mine ? load_gradient<T>(grad, wide_grad, at) : float4{};
    const float4 sum = add_parts(sums + at, u64(RANK) * cols, splits, valid);
    if (mine) store_gradient<T>(grad, wide_grad, at, alpha, sum, old);
}
