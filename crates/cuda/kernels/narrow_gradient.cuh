// grad [rank, cols] += α·narrow [rows, rank]ᵀ·drop(wide [rows, cols]), where the rank is small: the wide
// matrix is read once and nothing else counts.
//
// A warp has 64 columns and takes 16 rows at a time; COL_WARPS of them lie side by side, for memory likes
// long runs, and the others of the block take the next rows, as do the blocks that share the columns. A
// product's columns may come in any order: column n of tile j stands for 8n + j, so that lane (g, t) reads
// 16 bytes of each of its rows 2t, 2t + 1, 2t + 8, 2t + 9, and pairs up those of two rows.
#pragma once

#include "narrow_parts.cuh"

// The sizes are those of `Gradient` in src/narrow.rs.
#ifndef NARROW_GRADIENT_COL_WARPS
#define NARROW_GRADIENT_COL_WARPS 4
#endif
#ifndef NARROW_GRADIENT_STAGES
#define NARROW_GRADIENT_STAGES 4
#endif
#ifndef NARROW_GRADIENT_WARPS
#define NARROW_GRADIENT_WARPS 16
#endif

template <int TILES> struct Gradient {
    static constexpr bool SMALL = TILES <= 2;
    static constexpr int COL_WARPS = SMALL ? NARROW_GRADIENT_COL_WARPS : 2;
    static constexpr int STAGES = SMALL ? NARROW_GRADIENT_STAGES : 4;
    static constexpr int THREADS = WARP * (SMALL ? NARROW_GRADIENT_WARPS : 8);
    static constexpr int WARP_COLS = 64;
    static constexpr int COLS = COL_WARPS * WARP_COLS;
    static constexpr int WIDE_BYTES = 4 * 512;
    static constexpr int NARROW_ROW_BYTES = padded_row_bytes(2 * TILES);
    static constexpr int NARROW_BYTES = 16 * NARROW_ROW_BYTES;
    static constexpr int STAGE_BYTES = WIDE_BYTES + NARROW_BYTES + 64;
    // Of sums in shared memory; rows are apart from a multiple of the banks.
    static constexpr int PITCH = WARP_COLS + 4;
    static constexpr int WARP_SUMS = 16 * TILES * PITCH;
    static_assert(STAGES * STAGE_BYTES >= 4 * WARP_SUMS, "the sums lie where the stages were");
};

// `grad` is in float32 if `wide_grad`, else as T.
template <typename T, int TILES>
__device__ __forceinline__ void gradient(const T* narrow, const T* wide, u64 stride, void* grad, bool wide_grad,
                                         float* partials, u32 rows, u32 cols, u32 rank, float alpha,
                                         Dropping dropping) {
    using Shape = Gradient<TILES>;
    constexpr int STAGES = Shape::STAGES, RANK = 16 * TILES, COL_WARPS = Shape::COL_WARPS;
    extern __shared__ __align__(16) u8 shared[];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, row_warps = blockDim.x / WARP / COL_WARPS;
    const u32 g = lane / 4, t = lane % 4;
    const u32 col0 = blockIdx.x * Shape::COLS, col = col0 + warp % COL_WARPS * Shape::WARP_COLS + 8 * g;
    const u32 ring = shared_address(shared) + warp * STAGES * Shape::STAGE_BYTES;

    // Of this lane; without columns it copies zeros.
    const T* wide_at = wide + 2 * t * stride + col;
    const u32 rows_wanted = col < cols ? rows : 0;
    const u32 stride_rows = 16 * row_warps * gridDim.y;
    const auto fetch = [&](u32 row0, u32 stage) {
        if (row0 < rows) {
            const u32 at = ring + stage * Shape::STAGE_BYTES;
            const u32 narrow_at = at + Shape::WIDE_BYTES, ids_at = narrow_at + Shape::NARROW_BYTES;
            const T* from = wide_at + row0 * stride;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 below = i / 2 * 8 + i % 2;
                copy16(at + i * 512 + lane * 16, from + below * stride, row0 + 2 * t + below < rows_wanted);
            }
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                const u32 index = i * WARP + lane, row = index / (2 * TILES), piece = index % (2 * TILES);
                const T* from = narrow + u64(row0 + row) * rank;
                copy_piece(narrow_at + row * Shape::NARROW_ROW_BYTES + piece * 16, from, piece, rank, row0 + row < rows);
            }
            if (dropping.any() && lane < 16) {
                const u32 row = row0 + lane;
                copy4(ids_at + lane * 4, dropping.row_ids + row, row < rows);
            }
        }
        copies_commit();
    };

    const u32 first = 16 * (blockIdx.y * row_warps + warp / COL_WARPS);
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(first + s * stride_rows, s);

    const Mask mask = dropping.mask();
    const u32 limit = dropping.limit();
    float acc[TILES][8][4] = {};
    u32 stage = 0;
    for (u32 row0 = first; row0 < rows; row0 += stride_rows) {
        copies_wait<STAGES - 2>();
        // The narrow rows and the ids were copied by other lanes.
        __syncwarp();
        fetch(row0 + (STAGES - 1) * stride_rows, stage == 0 ? STAGES - 1 : stage - 1);
        const u32 at = ring + stage * Shape::STAGE_BYTES;
        const u32 narrow_at = at + Shape::WIDE_BYTES, ids_at = narrow_at + Shape::NARROW_BYTES;
        u32 x[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) load_shared16(x[i], at + i * 512 + lane * 16);
        if (dropping.any()) {
            const RowDraw draw(mask, load_shared4(ids_at + lane % 16 * 4));
#pragma unroll
            for (int i = 0; i < 4; i++) drop8(x[i], draw.of_lane(i / 2 * 8 + 2 * t + i % 2), col, limit);
        }
        u32 a[TILES][4];
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            const u32 row = lane / 16 * 8 + lane % 8, piece = 2 * m + lane / 8 % 2;
            load_matrices_transposed(a[m], narrow_at + row * Shape::NARROW_ROW_BYTES + piece * 16);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const u32 b0 = column_pair(x[0], x[1], j), b1 = column_pair(x[2], x[3], j);
#pragma unroll
            for (int m = 0; m < TILES; m++) mma<T>(acc[m][j], a[m], b0, b1);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    copies_wait<0>();
    __syncthreads();
    float* sums = reinterpret_cast<float*>(shared);
    float* mine = sums + warp * Shape::WARP_SUMS;
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float* at = mine + (16 * m + i / 2 * 8 + g) * Shape::PITCH + 16 * t + i % 2 * 8;
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                *reinterpret_cast<float4*>(at + j) =
                    make_float4(acc[m][j][i], acc[m][j + 1][i], acc[m][j + 2][i], acc[m][j + 3][i]);
            }
        }
    }
    __syncthreads();
    // Four that are neighbours in the gradient.
    const auto row_of = [&](u32 i) { return i / Shape::COLS; };
    const auto column_of = [&](u32 i) { return i % Shape::COLS; };
    const auto share = [&](u32 i) {
        const u32 column = column_of(i);
        const float* at = sums + column / Shape::WARP_COLS * Shape::WARP_SUMS + row_of(i) * Shape::PITCH;
        at += column % Shape::WARP_COLS;
        float4 sum = {};
#pragma unroll 4
        for (u32 w = 0; w < row_warps; w++) {
            add_to(sum, *reinterpret_cast<const float4*>(at));
            at += COL_WARPS * Shape::WARP_SUMS;
        }
        return sum;
    };
    const auto inside = [&](u32 i) { return row_of(i) < rank && col0 + column_of(i) < cols; };
    const auto place = [&](u32 i) { return u64(row_of(i)) * cols + col0 + column_of(i); };
    const auto fetch_old = [&](u32 i) {
        if (!inside(i)) return float4{};
        const u64 at = place(i);
        return wide_grad ? load4(static_cast<const float*>(grad) + at) : load4(static_cast<const T*>(grad) + at);
    };
    add_up<RANK * Shape::COLS>(partials, share, fetch_old, [&](u32 i, const float4& sum, const float4& old) {
        if (!inside(i)) return;
        if (wide_grad) {
            store4(static_cast<float*>(grad) + place(i), alpha, sum, old);
        } else {
            store4(static_cast<T*>(grad) + place(i), alpha, sum, old);
        }
    });
}
