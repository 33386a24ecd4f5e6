// grad [rank, cols] += α·low-rank [rows, rank]ᵀ·drop(wide [rows, cols]), where the rank is small: the wide matrix is read
// once and nothing else counts.
//
// A block has few columns, so that few blocks share them and what they add up stays small. Its warps form groups: those of
// a group have the columns side by side, and the groups take the block's rows in turn, 16 at a time, each with a ring of
// stages of its own. A thread drops what it copied itself. At the end the groups' sums are added in shared memory, and
// those of blocks that share columns by the last of them, always in the same order.
#pragma once

#include "low_rank_tile.cuh"

// RT: sixteens in the rank. The sizes are those of `Gradient` in src/low_rank.rs.
template <int RT> struct Gradient {
    static constexpr int RANK = 16 * RT;
    static constexpr int STAGES = RT <= 2 ? 4 : 6;
    static constexpr int COLS = 128;
    static constexpr int WARP_COLS = RT <= 2 ? 64 : 32;
    static constexpr int GROUP_WARPS = COLS / WARP_COLS;
    static constexpr int GROUP = GROUP_WARPS * WARP;
    static constexpr int THREADS_MAX = 512;
    static constexpr int IDS_BYTES = 64;
    using Tile = WideTile<COLS, GROUP>;
    static constexpr int STAGE_BYTES = Tile::BYTES + LowRankTile<RT>::BYTES + GROUP_WARPS * IDS_BYTES;
    // Of a group's sums in shared memory; rows begin in different banks.
    static constexpr int PITCH = COLS + 8;
    static constexpr int SUMS = RANK * PITCH;
    static_assert(4 * SUMS <= STAGES * STAGE_BYTES, "the sums lie where the stages were");
    static_assert(LowRankTile<RT>::THREADS <= GROUP, "a group copies its low-rank rows");
};

// `partials` holds RANK·COLS numbers for each block, and is not used where a block has all rows of its columns.
template <typename T, int RT>
__device__ __forceinline__ void gradient(const T* low_rank, const T* wide, u64 stride, float* partials, void* grad,
                                         bool wide_grad, u32 rows, u32 cols, u32 rank, u32 block_rows, float alpha,
                                         Dropping dropping) {
    using Shape = Gradient<RT>;
    using Tile = typename Shape::Tile;
    constexpr int STAGES = Shape::STAGES, STEPS = Shape::WARP_COLS / 16;
    extern __shared__ __align__(16) u8 shared[];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP % Shape::GROUP_WARPS;
    const u32 group = threadIdx.x / Shape::GROUP, groups = blockDim.x / Shape::GROUP;
    const u32 g = lane / 4, t = lane % 4;
    const u32 col0 = blockIdx.x * Shape::COLS, own_cols = min(cols - col0, u32(Shape::COLS));
    const u32 begin = blockIdx.y * block_rows + 16 * group, end = min((blockIdx.y + 1) * block_rows, rows);
    const u32 advance = 16 * groups;
    const u32 ring = shared_address(shared) + group * STAGES * Shape::STAGE_BYTES;
    const auto tile_of = [&](u32 stage) { return Tile{ring + stage * Shape::STAGE_BYTES}; };
    const auto low_rank_of = [&](u32 stage) { return LowRankTile<RT>{tile_of(stage).at + Tile::BYTES}; };
    // Each warp has the rows' ids for itself.
    const auto ids_of = [&](u32 stage) {
        return low_rank_of(stage).at + LowRankTile<RT>::BYTES + warp * Shape::IDS_BYTES;
    };
    const auto fetch = [&](u32 row0, u32 stage) {
        if (row0 < end) {
            tile_of(stage).fetch(wide + row0 * stride + col0, stride, end - row0, own_cols);
            low_rank_of(stage).fetch(low_rank + u64(row0) * rank, rank, end - row0, rank, threadIdx.x % Shape::GROUP);
            if (dropping.any() && lane < 16) {
                copy4(ids_of(stage) + lane * 4, dropping.row_ids + row0 + lane, row0 + lane < end);
            }
        }
        copies_commit();
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(begin + s * advance, s);

    const Mask mask = dropping.mask();
    const u32 limit = dropping.limit();
    float acc[RT][2 * STEPS][4] = {};
    u32 stage = 0;
    for (u32 row0 = begin; row0 < end; row0 += advance) {
        copies_wait<STAGES - 2>();
        const Tile tile = tile_of(stage);
        if (dropping.any()) {
            // The ids were copied by other lanes.
            __syncwarp();
            const RowDraw draw(mask, load_shared4(ids_of(stage) + lane % 16 * 4));
            // Some at a time, for an access may not pass another.
            constexpr int SOME = Tile::OWN < 4 ? Tile::OWN : 4;
#pragma unroll
            for (int first = 0; first < Tile::OWN; first += SOME) {
                u32 words[SOME][4];
#pragma unroll
                for (int i = 0; i < SOME; i++) load_shared16(words[i], tile.own(first + i));
#pragma unroll
                for (int i = 0; i < SOME; i++) {
                    drop8(words[i], draw.of_lane(Tile::own_row(first + i)), col0 + 8 * Tile::own_piece(), limit);
                }
#pragma unroll
                for (int i = 0; i < SOME; i++) store_shared16(tile.own(first + i), words[i]);
            }
        }
        group_barrier(group, Shape::GROUP);
        fetch(row0 + (STAGES - 1) * advance, stage == 0 ? STAGES - 1 : stage - 1);
        u32 h[RT][4];
        low_rank_of(stage).load_transposed(h);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            u32 y[4];
            load_matrices_transposed(y, tile.step(warp * STEPS + s));
#pragma unroll
            for (int m = 0; m < RT; m++) {
                mma<T>(acc[m][2 * s], h[m], y[0], y[1]);
                mma<T>(acc[m][2 * s + 1], h[m], y[2], y[3]);
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    copies_wait<0>();
    __syncthreads();
    float* sums = reinterpret_cast<float*>(shared);
    float* mine = sums + group * Shape::SUMS + warp * Shape::WARP_COLS + 2 * t;
#pragma unroll
    for (int m = 0; m < RT; m++) {
#pragma unroll
        for (int j = 0; j < 2 * STEPS; j++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float* at = mine + (16 * m + 8 * half + g) * Shape::PITCH + 8 * j;
                *reinterpret_cast<float2*>(at) = make_float2(acc[m][j][2 * half], acc[m][j][2 * half + 1]);
            }
        }
    }
    __syncthreads();
    const auto share = [&](u32 i) {
        const float* at = sums + i / Shape::COLS * Shape::PITCH + i % Shape::COLS;
        float4 sum = {};
#pragma unroll 4
        for (u32 k = 0; k < groups; k++) add_to(sum, *reinterpret_cast<const float4*>(at + k * Shape::SUMS));
        return sum;
    };
    const auto inside = [&](u32 i) { return i / Shape::COLS < rank && i % Shape::COLS < own_cols; };
    const auto place = [&](u32 i) { return u64(i / Shape::COLS) * cols + col0 + i % Shape::COLS; };
    const auto old = [&](u32 i) { return inside(i) ? load_gradient<T>(grad, wide_grad, place(i)) : float4{}; };
    add_up<Shape::RANK * Shape::COLS>(partials, share, old, [&](u32 i, const float4& sum, const float4& onto) {
        if (inside(i)) store_gradient<T>(grad, wide_grad, place(i), alpha, sum, onto);
    });
}
