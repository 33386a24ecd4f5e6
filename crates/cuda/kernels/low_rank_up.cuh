// wide [rows, cols] = from + drop(α·low-rank [rows, rank]·W), where the rank is small: the wide matrix is
// read and written once and nothing else counts. `from` may be the wide matrix itself, or null for zeros.
//
// A warp keeps the weight of 64 columns in registers and walks down the rows, 16 at a time. A product's
// columns may come in any order: column n of tile j stands for 8·(n / 2) + 32·(n % 2) + j, which makes the
// results of a lane two runs of eight neighbours in each of two rows.
#pragma once

#include "low_rank_parts.cuh"

template <int STEPS> struct Up {
    static constexpr int STAGES = 4;
    static constexpr int COLS = 64;
    static constexpr int THREADS = 128;
    static constexpr int WIDE_BYTES = 4 * 512;
    static constexpr int LOW_RANK_BYTES = STEPS * 512;
    static constexpr int STAGE_BYTES = WIDE_BYTES + LOW_RANK_BYTES + 64;
};

// `weight` is [rank, cols] if `rank_first`, else [cols, rank]; the block is the `block`th of those side by side.
template <typename T, int STEPS>
__device__ __forceinline__ void up(const T* low_rank, u32 low_rank_stride, const T* weight, bool rank_first, const T* from,
                                   T* to, u64 stride, u32 block, u32 rows, u32 cols, u32 rank, u32 block_rows,
                                   float alpha, Dropping dropping) {
    using Shape = Up<STEPS>;
    constexpr int STAGES = Shape::STAGES;
    extern __shared__ __align__(16) u8 shared[];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 g = lane / 4, t = lane % 4;
    const u32 col0 = (block * (Shape::THREADS / WARP) + warp) * Shape::COLS;
    if (col0 >= cols) return;
    const u32 ring = shared_address(shared) + warp * STAGES * Shape::STAGE_BYTES;
    const u32 begin = blockIdx.y * block_rows, end = min(begin + block_rows, rows);

    // Of this lane.
    const u32 col = col0 + 8 * t;
    const u64 lane_at = (begin + g) * stride + col;
    const T* from_at = from + lane_at;
    T* to_at = to + lane_at;
    const T* low_rank_lane = low_rank + u64(begin + g) * low_rank_stride + 4 * t;
    const bool inside[2] = {col < cols, col + 32 < cols};
    const auto fetch = [&](u32 row0, u32 stage) {
        if (row0 < end) {
            const u32 at = ring + stage * Shape::STAGE_BYTES;
            const u32 low_rank_at = at + Shape::WIDE_BYTES, ids_at = low_rank_at + Shape::LOW_RANK_BYTES;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 row = row0 + 8 * half + g;
                if (from != nullptr) {
#pragma unroll
                    for (int run = 0; run < 2; run++) {
                        const u32 to_stage = at + (2 * half + run) * 512 + lane * 16;
                        const T* wide_from = from_at + (row0 - begin + 8 * half) * stride + 32 * run;
                        copy16(to_stage, wide_from, row < end && inside[run]);
                    }
                }
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    const T* low_rank_from = low_rank_lane + (row0 - begin + 8 * half) * low_rank_stride + 16 * s;
                    copy8(low_rank_at + (2 * s + half) * 256 + lane * 8, low_rank_from, row < end && 16 * s + 4 * t < rank);
                }
            }
            if (dropping.any() && lane < 16) {
                const u32 row = row0 + lane;
                copy4(ids_at + lane * 4, dropping.row_ids + row, row < rows);
            }
        }
        copies_commit();
    };

#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(begin + 16 * s, s);

    // Of the sixteen summed over in a step, a lane has the four neighbours 4t.. of both factors.
    u32 b[8][STEPS][2];
    if (rank_first) {
        const u32 weight_col = col0 + g / 2 * 8 + g % 2 * 32;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            u32 w[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 k = 16 * s + 4 * t + i;
                const T* at = weight + u64(k) * cols + weight_col;
                const bool valid = k < rank && weight_col < cols;
                const uint4 words = valid ? *reinterpret_cast<const uint4*>(at) : uint4{};
                w[i][0] = words.x, w[i][1] = words.y, w[i][2] = words.z, w[i][3] = words.w;
            }
#pragma unroll
            for (int j = 0; j < 8; j++) {
                b[j][s][0] = column_pair(w[0], w[1], j);
                b[j][s][1] = column_pair(w[2], w[3], j);
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const u32 weight_col = col0 + g / 2 * 8 + g % 2 * 32 + j;
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const u32 k = 16 * s + 4 * t;
                const T* at = weight + u64(weight_col) * rank + k;
                const bool valid = k < rank && weight_col < cols;
                const uint2 words = valid ? *reinterpret_cast<const uint2*>(at) : uint2{};
                b[j][s][0] = words.x, b[j][s][1] = words.y;
            }
        }
    }

    const Mask mask = dropping.mask();
    const u32 limit = dropping.limit();
    u32 stage = 0;
    for (u32 row0 = begin; row0 < end; row0 += 16) {
        copies_wait<STAGES - 2>();
        // The ids of the rows were copied by other lanes.
        __syncwarp();
        fetch(row0 + 16 * (STAGES - 1), stage == 0 ? STAGES - 1 : stage - 1);
        const u32 at = ring + stage * Shape::STAGE_BYTES;
        const u32 low_rank_at = at + Shape::WIDE_BYTES, ids_at = low_rank_at + Shape::LOW_RANK_BYTES;
        float acc[8][4];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const uint2 top = load_shared8(low_rank_at + 2 * s * 256 + lane * 8);
            const uint2 bottom = load_shared8(low_rank_at + (2 * s + 1) * 256 + lane * 8);
            const u32 a[4] = {top.x, bottom.x, top.y, bottom.y};
#pragma unroll
            for (int j = 0; j < 8; j++) {
                if (s == 0) {
                    mma_first<T>(acc[j], a, b[j][s][0], b[j][s][1]);
                } else {
                    mma<T>(acc[j], a, b[j][s][0], b[j][s][1]);
                }
            }
        }
        RowDraw draw;
        if (dropping.any()) draw = RowDraw(mask, load_shared4(ids_at + lane % 16 * 4));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 row = row0 + 8 * half + g;
            RowDraw row_draw;
            if (dropping.any()) row_draw = draw.of_lane(8 * half + g);
#pragma unroll
            for (int run = 0; run < 2; run++) {
                float x[8];
#pragma unroll
                for (int j = 0; j < 8; j++) x[j] = acc[j][2 * half + run];
                if (dropping.any()) drop8(x, row_draw, col + 32 * run, limit);
                Pack<T> pack = {};
                if (from != nullptr) {
                    u32 words[4];
                    load_shared16(words, at + (2 * half + run) * 512 + lane * 16);
                    *reinterpret_cast<uint4*>(&pack) = make_uint4(words[0], words[1], words[2], words[3]);
                }
#pragma unroll
                for (int j = 0; j < 8; j++) pack.v[j] = from_float<T>(fmaf(alpha, x[j], to_float(pack.v[j])));
                if (row < end && inside[run]) {
                    store_pack(to_at + (row0 - begin + 8 * half) * stride + 32 * run, pack);
                }
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}
