// low-rank [rows, rank] = α·drop(wide [rows, depth])·W, where the rank is small: the wide matrix is read
// once and nothing else counts.
//
// A block has 16·ROW_TILES rows; its warps take steps of 32 along the depth in turn, and so do the
// blocks that share the rows. The tensor cores sum over an index in any order as long as both factors keep
// to it, so lane (g, t) takes for its own the eight neighbours 8t.. of rows g and g + 8, which are 16 bytes
// in memory: what a lane multiplies it copied itself, and waits for nobody.
#pragma once

#include "low_rank_parts.cuh"

// Every warp reads its share of the weight again for each block of rows, from the cache: few rows make that
// as much as the wide matrix. The sizes are those of `down_shape` in src/low_rank.rs.
template <int TILES> struct Down {
    static constexpr bool SMALL = TILES <= 2;
    static constexpr int ROW_TILES = SMALL ? 8 : 4;
    static constexpr int STAGES = SMALL ? 2 : 3;
    static constexpr int THREADS = WARP * 8;
    static constexpr int ROWS = 16 * ROW_TILES;
    static constexpr int RUN = 32;
    static constexpr int WIDE_BYTES = 2 * ROW_TILES * 512;
    static constexpr int STAGE_BYTES = WIDE_BYTES + 512 * TILES;
    // Of sums in shared memory.
    static constexpr int WARP_SUMS = ROWS * 8 * TILES;
    static_assert(STAGES * STAGE_BYTES >= 4 * WARP_SUMS, "the sums lie where the stages were");
};

// `weight` is [rank, depth].
template <typename T, int TILES>
__device__ __forceinline__ void down(const T* wide, u64 stride, const T* weight, T* low_rank, float* partials, u32 rows,
                                     u32 depth, u32 rank, float alpha, Dropping dropping) {
    using Shape = Down<TILES>;
    constexpr int ROW_TILES = Shape::ROW_TILES, STAGES = Shape::STAGES, RANK = 8 * TILES;
    extern __shared__ __align__(16) u8 shared[];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const u32 g = lane / 4, t = lane % 4;
    const u32 row0 = blockIdx.x * Shape::ROWS;
    const u32 ring = shared_address(shared) + warp * STAGES * Shape::STAGE_BYTES;

    // Of this lane, which has every eighth row.
    const T* wide_at = wide + (row0 + g) * stride + 8 * t;
    const T* weight_lane = weight + u64(g) * depth + 8 * t;
    const u64 eight_rows = 8 * stride;
    const u32 rows_left = row0 + g < rows ? rows - row0 - g : 0;

    const u32 runs = (depth + Shape::RUN - 1) / Shape::RUN, stride_runs = warps * gridDim.y;
    const auto fetch_run = [&](u32 run, u32 at) {
        const u32 k0 = run * Shape::RUN;
        const u32 left = k0 + 8 * t < depth ? rows_left : 0;
        const T* from = wide_at + k0;
#pragma unroll
        for (int p = 0; p < 2 * ROW_TILES; p++) copy16(at + p * 512 + lane * 16, from + p * eight_rows, 8 * p < left);
        const u32 weight_at = at + Shape::WIDE_BYTES;
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            const bool valid = 8 * j + g < rank && k0 + 8 * t < depth;
            copy16(weight_at + j * 512 + lane * 16, weight_lane + u64(8 * j) * depth + k0, valid);
        }
    };
    const auto fetch = [&](u32 run, u32 stage) {
        if (run < runs) fetch_run(run, ring + stage * Shape::STAGE_BYTES);
        copies_commit();
    };

    const u32 first = blockIdx.y * warps + warp;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(first + s * stride_runs, s);

    const u32 limit = dropping.limit();
    RowDraw draws[2 * ROW_TILES];
    if (dropping.any()) {
        const Mask mask = dropping.mask();
#pragma unroll
        for (int p = 0; p < 2 * ROW_TILES; p++) {
            draws[p] = RowDraw(mask, dropping.row_ids[min(row0 + 8 * p + g, rows - 1)]);
        }
    }

    float acc[ROW_TILES][TILES][4] = {};
    const auto multiply = [&](u32 run, u32 at) {
        const u32 weight_at = at + Shape::WIDE_BYTES;
        u32 b[TILES][4];
#pragma unroll
        for (int j = 0; j < TILES; j++) load_shared16(b[j], weight_at + j * 512 + lane * 16);
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) {
            u32 top[4], bottom[4];
            load_shared16(top, at + 2 * m * 512 + lane * 16);
            load_shared16(bottom, at + (2 * m + 1) * 512 + lane * 16);
            if (dropping.any()) {
                const u32 column = run * Shape::RUN + 8 * t;
                drop8(top, draws[2 * m], column, limit);
                drop8(bottom, draws[2 * m + 1], column, limit);
            }
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const u32 a[4] = {top[2 * s], bottom[2 * s], top[2 * s + 1], bottom[2 * s + 1]};
#pragma unroll
                for (int j = 0; j < TILES; j++) mma<T>(acc[m][j], a, b[j][2 * s], b[j][2 * s + 1]);
            }
        }
    };
    u32 stage = 0;
    for (u32 run = first; run < runs; run += stride_runs) {
        copies_wait<STAGES - 2>();
        fetch(run + (STAGES - 1) * stride_runs, stage == 0 ? STAGES - 1 : stage - 1);
        multiply(run, ring + stage * Shape::STAGE_BYTES);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    copies_wait<0>();
    __syncthreads();
    float* sums = reinterpret_cast<float*>(shared);
    float* mine = sums + warp * Shape::WARP_SUMS;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            float* at = mine + (16 * m + g) * RANK + 8 * j + 2 * t;
            *reinterpret_cast<float2*>(at) = make_float2(acc[m][j][0], acc[m][j][1]);
            *reinterpret_cast<float2*>(at + 8 * RANK) = make_float2(acc[m][j][2], acc[m][j][3]);
        }
    }
    __syncthreads();
    const auto share = [&](u32 i) {
        float4 sum = {};
#pragma unroll 4
        for (u32 w = 0; w < warps; w++) add_to(sum, *reinterpret_cast<const float4*>(sums + w * Shape::WARP_SUMS + i));
        return sum;
    };
    const auto nothing = [](u32) { return 0; };
    add_up<Shape::WARP_SUMS>(partials, share, nothing, [&](u32 i, const float4& sum, int) {
        const u32 row = row0 + i / RANK, n = i % RANK;
        if (row < rows && n < rank) store4(low_rank + u64(row) * rank + n, alpha, sum, float4{});
    });
}
