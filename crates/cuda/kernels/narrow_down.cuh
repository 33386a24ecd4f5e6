// narrow [rows, rank] = α·drop(wide [rows, depth])·W, where the rank is small: the wide matrix is read
// once and nothing else counts.
//
// A block has 16·ROW_TILES rows; its warps take steps of 32 along the depth in turn, and so do the blocks
// that share the rows. The tensor cores sum over an index in any order as long as both factors keep to
// it, so lane (g, t) takes for its own the eight neighbours 8t.. of rows g and g + 8, which are 16 bytes
// in memory: what a lane multiplies it copied itself, and waits for nobody.
#pragma once

#include "narrow_parts.cuh"

template <int TILES> struct Down {
    // Longer columns of rows where the weight would otherwise be read too often.
    static constexpr int ROW_TILES = TILES <= 2 ? 2 : 4;
    static constexpr int ROWS = 16 * ROW_TILES;
    static constexpr int STAGES = 3;
    static constexpr int DEPTH = 32;
    static constexpr int WIDE_BYTES = 2 * ROW_TILES * 512;
    static constexpr int WEIGHT_ROW_BYTES = padded_row_bytes(TILES);
    static constexpr int STAGE_BYTES = WIDE_BYTES + DEPTH * WEIGHT_ROW_BYTES;
    static constexpr int THREADS = TILES <= 2 ? 512 : 256;
};

// Where row `k` of the weight's 32 is put, so that the matrices of a fragment lie row after row: fragments
// hold, of each lane's eight, first 0, 1 and 2, 3, then 4, 5 and 6, 7.
__device__ __forceinline__ u32 weight_slot(u32 k) { return k / 2 % 4 * 8 + k / 8 * 2 + k % 2; }

// `weight` is [rank, depth] if `rank_first`, else [depth, rank].
template <typename T, int TILES>
__device__ __forceinline__ void down(const T* wide, u64 stride, const T* weight, bool rank_first, T* narrow,
                                     float* partials, u32 rows, u32 depth, u32 rank, float alpha, Dropping dropping) {
    using Shape = Down<TILES>;
    constexpr int ROW_TILES = Shape::ROW_TILES, STAGES = Shape::STAGES, RANK = 8 * TILES;
    extern __shared__ __align__(16) u8 shared[];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const u32 g = lane / 4, t = lane % 4;
    const u32 row0 = blockIdx.x * Shape::ROWS;
    const u32 ring = shared_address(shared) + warp * STAGES * Shape::STAGE_BYTES;

    const u32 steps = (depth + Shape::DEPTH - 1) / Shape::DEPTH, stride_steps = warps * gridDim.y;
    const auto fetch = [&](u32 step, u32 stage) {
        if (step < steps) {
            const u32 at = ring + stage * Shape::STAGE_BYTES, k = step * Shape::DEPTH + 8 * t;
#pragma unroll
            for (int p = 0; p < 2 * ROW_TILES; p++) {
                const u32 row = row0 + 8 * p + g;
                const bool valid = row < rows && k < depth;
                copy16(at + p * 512 + lane * 16, valid ? wide + row * stride + k : wide, valid);
            }
            const u32 weight_at = at + Shape::WIDE_BYTES;
            if (rank_first) {
#pragma unroll
                for (int j = 0; j < TILES; j++) {
                    const u32 n = 8 * j + g;
                    const bool valid = n < rank && k < depth;
                    copy16(weight_at + j * 512 + lane * 16, valid ? weight + u64(n) * depth + k : weight, valid);
                }
            } else {
#pragma unroll
                for (int j = 0; j < TILES; j++) {
                    const u32 i = j * WARP + lane, row = step * Shape::DEPTH + i / TILES, piece = i % TILES;
                    const u32 to = weight_at + weight_slot(i / TILES) * Shape::WEIGHT_ROW_BYTES + piece * 16;
                    copy_piece(to, weight, row, piece, rank, row < depth);
                }
            }
        }
        copies_commit();
    };

    const u32 first = blockIdx.y * warps + warp;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(first + s * stride_steps, s);

    RowDraw draws[2 * ROW_TILES];
    if (dropping.any()) {
        const Mask mask = dropping.mask();
#pragma unroll
        for (int p = 0; p < 2 * ROW_TILES; p++) {
            draws[p] = RowDraw(mask, dropping.row_ids[min(row0 + 8 * p + g, rows - 1)]);
        }
    }

    float acc[ROW_TILES][TILES][4] = {};
    u32 stage = 0;
    for (u32 step = first; step < steps; step += stride_steps) {
        copies_wait<STAGES - 2>();
        // The weight's rows may have been copied by other lanes.
        __syncwarp();
        fetch(step + (STAGES - 1) * stride_steps, stage == 0 ? STAGES - 1 : stage - 1);
        const u32 at = ring + stage * Shape::STAGE_BYTES, weight_at = at + Shape::WIDE_BYTES;
        u32 b[TILES][4];
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            if (rank_first) {
                load_shared16(b[j], weight_at + j * 512 + lane * 16);
            } else {
                load_matrices_transposed(b[j], weight_at + lane * Shape::WEIGHT_ROW_BYTES + j * 16);
            }
        }
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) {
            u32 top[4], bottom[4];
            load_shared16(top, at + 2 * m * 512 + lane * 16);
            load_shared16(bottom, at + (2 * m + 1) * 512 + lane * 16);
            if (dropping.any()) {
                const u32 column = step * Shape::DEPTH + 8 * t;
                drop8(top, draws[2 * m], column, dropping.threshold);
                drop8(bottom, draws[2 * m + 1], column, dropping.threshold);
            }
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const u32 a[4] = {top[2 * s], bottom[2 * s], top[2 * s + 1], bottom[2 * s + 1]};
#pragma unroll
                for (int j = 0; j < TILES; j++) mma<T>(acc[m][j], a, b[j][2 * s], b[j][2 * s + 1]);
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    copies_wait<0>();
    __syncthreads();
    float* sums = reinterpret_cast<float*>(shared);
    float* mine = sums + warp * Shape::ROWS * RANK;
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
    constexpr int COUNT = Shape::ROWS * RANK;
    const auto place = [](u32 i) { return i; };
    add_up<COUNT, COUNT>(sums, partials, place, [&](u32 i, float sum) {
        const u32 row = row0 + i / RANK, n = i % RANK;
        if (row < rows && n < rank) narrow[u64(row) * rank + n] = from_float<T>(alpha * sum);
    });
}
