// grad += α·narrow [rows, rank]ᵀ·drop(wide [rows, cols]), or its transpose, where the rank is small: the
// wide matrix is read once and nothing else counts.
//
// A block has 64 columns; its warps take 16 rows at a time in turn, and so do the blocks that share the
// columns. A product's columns may come in any order: column n of tile j stands for 8n + j, so that lane
// (g, t) reads 16 bytes of each of its rows 2t, 2t + 1, 2t + 8, 2t + 9, and pairs up those of two rows.
#pragma once

#include "narrow_parts.cuh"

template <int TILES> struct Gradient {
    static constexpr int STAGES = 4;
    static constexpr int COLS = 64;
    // Of sums in shared memory; apart from a multiple of the banks.
    static constexpr int PITCH = COLS + 4;
    static constexpr int WIDE_BYTES = 4 * 512;
    static constexpr int NARROW_ROW_BYTES = padded_row_bytes(2 * TILES);
    static constexpr int NARROW_BYTES = 16 * NARROW_ROW_BYTES;
    static constexpr int STAGE_BYTES = WIDE_BYTES + NARROW_BYTES + 64;
    static constexpr int THREADS = 256;
    static_assert(STAGES * STAGE_BYTES >= 16 * TILES * PITCH * 4, "the sums lie where the stages were");
};

// `grad` is [rank, cols] if `rank_first`, else [cols, rank]; in float32 if `wide_grad`, else as T.
template <typename T, int TILES>
__device__ __forceinline__ void gradient(const T* narrow, const T* wide, u64 stride, void* grad, bool rank_first,
                                         bool wide_grad, float* partials, u32 rows, u32 cols, u32 rank, float alpha,
                                         Dropping dropping) {
    using Shape = Gradient<TILES>;
    constexpr int STAGES = Shape::STAGES, RANK = 16 * TILES;
    extern __shared__ __align__(16) u8 shared[];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const u32 g = lane / 4, t = lane % 4;
    const u32 col0 = blockIdx.x * Shape::COLS, col = col0 + 8 * g;
    const u32 ring = shared_address(shared) + warp * STAGES * Shape::STAGE_BYTES;

    const u32 stride_rows = 16 * warps * gridDim.y;
    const auto fetch = [&](u32 row0, u32 stage) {
        if (row0 < rows) {
            const u32 at = ring + stage * Shape::STAGE_BYTES;
            const u32 narrow_at = at + Shape::WIDE_BYTES, ids_at = narrow_at + Shape::NARROW_BYTES;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 row = row0 + i / 2 * 8 + 2 * t + i % 2;
                const bool valid = row < rows && col < cols;
                copy16(at + i * 512 + lane * 16, valid ? wide + row * stride + col : wide, valid);
            }
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                const u32 index = i * WARP + lane, row = index / (2 * TILES), piece = index % (2 * TILES);
                copy_piece(narrow_at + row * Shape::NARROW_ROW_BYTES + piece * 16, narrow, row0 + row, piece, rank,
                           row0 + row < rows);
            }
            if (dropping.any() && lane < 16) {
                const u32 row = row0 + lane;
                copy4(ids_at + lane * 4, dropping.row_ids + min(row, rows - 1), row < rows);
            }
        }
        copies_commit();
    };

    const u32 first = 16 * (blockIdx.y * warps + warp);
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(first + s * stride_rows, s);

    const Mask mask = dropping.mask();
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
            for (int i = 0; i < 4; i++) {
                drop8(x[i], draw.of_lane(i / 2 * 8 + 2 * t + i % 2), col, dropping.threshold);
            }
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
    float* mine = sums + warp * RANK * Shape::PITCH;
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
    // Neighbours in the gradient are stored by neighbouring threads.
    const auto row_of = [&](u32 i) { return rank_first ? i / Shape::COLS : i % RANK; };
    const auto column_of = [&](u32 i) { return rank_first ? i % Shape::COLS : i / RANK; };
    const auto place = [&](u32 i) { return row_of(i) * Shape::PITCH + column_of(i); };
    add_up<RANK * Shape::COLS, RANK * Shape::PITCH>(sums, partials, place, [&](u32 i, float sum) {
        const u32 n = row_of(i), c = col0 + column_of(i);
        if (n >= rank || c >= cols) return;
        const u64 to = rank_first ? u64(n) * cols + c : u64(c) * rank + n;
        if (wide_grad) {
            float* grad_at = static_cast<float*>(grad) + to;
            *grad_at = fmaf(alpha, sum, *grad_at);
        } else {
            T* grad_at = static_cast<T*>(grad) + to;
            *grad_at = from_float<T>(fmaf(alpha, sum, to_float(*grad_at)));
        }
    });
}
