// low-rank [rows, rank] = α·drop(wide [rows, depth])·W, where the rank is small: the wide matrix is read
// once and nothing else counts.
//
// A block has 128 rows and a share of the depth, which goes through a ring of stages in whole lines of the cache: what
// one stage waits for, the others have under way. Warps have 32 rows each and, of every 64 columns, one half.
//
// The tensor cores sum over an index in any order as long as both factors keep to it, so lane (g, t) takes the eight
// neighbours 8t.. of rows g and g + 8, which are 16 bytes in memory.
#pragma once

#include "low_rank_parts.cuh"

// Columns of a stage, and stages: as many bytes under way as shared memory has room for at any rank. As `Shape` has them in
// src/low_rank_down.rs.
#if __CUDA_ARCH__ == 900 || (__CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200)
#define DOWN_RUN 128
#define DOWN_STAGES 4
#elif __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870
#define DOWN_RUN 64
#define DOWN_STAGES 6
#else
#define DOWN_RUN 64
#define DOWN_STAGES 4
#endif

template <int TILES> struct Down {
    static constexpr int RUN = DOWN_RUN, STAGES = DOWN_STAGES;
    static constexpr int ROWS = 128, RANK = 8 * TILES;
    static constexpr int ROW_WARPS = 4, HALVES = 2;
    static constexpr int THREADS = WARP * ROW_WARPS * HALVES;
    static constexpr int ROW_BYTES = 2 * RUN;
    static constexpr int WIDE_BYTES = ROWS * ROW_BYTES;
    static constexpr int STAGE_BYTES = WIDE_BYTES + RANK * ROW_BYTES;
    // Of a thread, which copies the same piece of a row in every COPY_ROWSth.
    static constexpr int PIECES = RUN / 8;
    static constexpr int COPY_ROWS = THREADS / PIECES;
    static_assert(ROWS == 32 * ROW_WARPS && ROWS * RANK == 4 * THREADS * TILES, "a warp ends with the sums of 16 rows");
    static_assert(STAGES * STAGE_BYTES >= 4 * HALVES * ROWS * RANK, "the sums lie where the stages were");

    // Where a row's piece of eight columns lies: four neighbours of two rows are in different banks.
    __device__ __forceinline__ static u32 place(u32 row, u32 piece) {
        return row * ROW_BYTES + (piece ^ row % 2 * 4) * 16;
    }
};

// Two neighbours, aligned.
template <typename T> __device__ __forceinline__ void store2(T* to, float first, float second) {
    struct alignas(2 * sizeof(T)) {
        T v[2];
    } two;
    two.v[0] = from_float<T>(first);
    two.v[1] = from_float<T>(second);
    *reinterpret_cast<decltype(two)*>(to) = two;
}

// `weight` is [rank, depth]; blocks of the same rows are side by side in y, and the last one adds up their `partials`.
template <typename T, int TILES>
__device__ __forceinline__ void down(const T* wide, u64 stride, const T* weight, T* low_rank, float* partials, u32 rows,
                                     u32 depth, u32 rank, float alpha, Dropping dropping) {
    using Shape = Down<TILES>;
    constexpr int RUN = Shape::RUN, STAGES = Shape::STAGES, ROWS = Shape::ROWS, RANK = Shape::RANK;
    constexpr int ROW_BYTES = Shape::ROW_BYTES, COPY_ROWS = Shape::COPY_ROWS;
    extern __shared__ __align__(16) u8 shared[];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 g = lane / 4, t = lane % 4;
    const u32 row0 = blockIdx.x * ROWS;
    const u32 ring = shared_address(shared);
    const u32 runs = (depth + RUN - 1) / RUN;
    const u32 begin = runs * blockIdx.y / gridDim.y, end = runs * (blockIdx.y + 1) / gridDim.y;

    const u32 copy_row = threadIdx.x / Shape::PIECES, copy_piece = threadIdx.x % Shape::PIECES;
    const u32 copy_to = ring + Shape::place(copy_row, copy_piece);
    const T* wide_from = wide + (row0 + copy_row) * stride + 8 * copy_piece;
    const T* weight_from = weight + u64(copy_row) * depth + 8 * copy_piece;
    const auto fetch = [&](u32 run, u32 stage) {
        if (run < end) {
            const u32 k0 = run * RUN, at = copy_to + stage * Shape::STAGE_BYTES;
            const bool inside = k0 + 8 * copy_piece < depth;
#pragma unroll
            for (int row = 0; row < ROWS; row += COPY_ROWS) {
                const bool valid = inside && row0 + copy_row + row < rows;
                copy16(at + row * ROW_BYTES, wide_from + row * stride + k0, valid);
            }
#pragma unroll
            for (int n = 0; n < RANK; n += COPY_ROWS) {
                const u32 to = at + Shape::WIDE_BYTES + n * ROW_BYTES;
                const bool valid = inside && copy_row + n < rank;
                if (copy_row + n < RANK) copy16(to, weight_from + u64(n) * depth + k0, valid);
            }
        }
        copies_commit();
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(begin + s, s);

    const u32 warp_row = warp % Shape::ROW_WARPS * 32, half = warp / Shape::ROW_WARPS;
    const u32 limit = dropping.limit();
    RowDraw draws[4];
    if (dropping.any()) {
        const Mask mask = dropping.mask();
#pragma unroll
        for (int p = 0; p < 4; p++) {
            draws[p] = RowDraw(mask, dropping.row_ids[min(row0 + warp_row + 8 * p + g, rows - 1)]);
        }
    }

    float acc[2][TILES][4] = {};
    const auto multiply = [&](u32 run, u32 stage) {
#pragma unroll
        for (int k = 0; k < RUN; k += 64) {
            const u32 piece = k / 8 + 4 * half + t;
            const u32 at = ring + stage * Shape::STAGE_BYTES + Shape::place(g, piece);
            u32 b[TILES][4];
#pragma unroll
            for (int j = 0; j < TILES; j++) load_shared16(b[j], at + Shape::WIDE_BYTES + 8 * j * ROW_BYTES);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const u32 wide_at = at + (warp_row + 16 * m) * ROW_BYTES;
                u32 top[4], bottom[4];
                load_shared16(top, wide_at);
                load_shared16(bottom, wide_at + 8 * ROW_BYTES);
                if (dropping.any()) {
                    const u32 column = run * RUN + 8 * piece;
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
        }
    };
    u32 stage = 0;
    for (u32 run = begin; run < end; run++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        fetch(run + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
        multiply(run, stage);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    // Sums stay in the order in which lanes have them, four of 16 rows and 8 ranks each; now every warp has 16 rows.
    copies_wait<0>();
    __syncthreads();
    float4* sums = reinterpret_cast<float4*>(shared);
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            const u32 tile = (half * ROWS + warp_row) / 16 + m;
            const float* c = acc[m][j];
            sums[(tile * TILES + j) * WARP + lane] = make_float4(c[0], c[1], c[2], c[3]);
        }
    }
    __syncthreads();
    const u32 mine = warp * TILES * WARP + lane;
    float4 sum[TILES];
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        sum[j] = sums[mine + j * WARP];
        add_to(sum[j], sums[mine + (ROWS / 16 * TILES + j) * WARP]);
    }
    const u32 splits = gridDim.y;
    if (splits > 1) {
        constexpr int COUNT = ROWS * RANK / 4;
        float4* first = reinterpret_cast<float4*>(partials) + u64(blockIdx.x) * splits * COUNT + mine;
#pragma unroll
        for (int j = 0; j < TILES; j++) first[blockIdx.y * COUNT + j * WARP] = sum[j];
        if (!arrives_last(blockIdx.x, splits)) return;
#pragma unroll
        for (int j = 0; j < TILES; j++) sum[j] = float4{};
#pragma unroll 4
        for (u32 s = 0; s < splits; s++) {
#pragma unroll
            for (int j = 0; j < TILES; j++) add_to(sum[j], __ldcg(first + s * COUNT + j * WARP));
        }
    }
    const u32 row = row0 + 16 * warp + g;
    T* to = low_rank + u64(row) * rank + 2 * t;
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        if (8 * j + 2 * t >= rank) continue;
        if (row < rows) store2(to + 8 * j, alpha * sum[j].x, alpha * sum[j].y);
        if (row + 8 < rows) store2(to + 8 * rank + 8 * j, alpha * sum[j].z, alpha * sum[j].w);
    }
}
