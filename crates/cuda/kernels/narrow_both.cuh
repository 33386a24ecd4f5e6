// Of several adapters j that share a wide gradient: dh_j = dy_j·b_j and db_j = dy_jᵀ·h_j, where the rank is small,
// in one reading of dy, which is all that counts.
//
// A block has some columns of one adapter and walks down its rows, 16 at a time. A warp keeps db and b of its columns
// in registers; what its columns add to dh goes through shared memory, where those of all warps are summed. Blocks
// leave their sums behind, and `both_sums` adds them up in their order.
#pragma once

#include "narrow_spans.cuh"

// RT: sixteens in the rank. The sizes are those of `Both` in src/narrow.rs.
template <int RT> struct Both {
    static constexpr int RANK = 16 * RT;
    static constexpr int STAGES = 4;
    static constexpr int WARP_COLS = 128 / RT;
    static constexpr int PIECES = WARP_COLS / 8;
    static constexpr int TILE_BYTES = 32 * WARP_COLS;
    static constexpr int NARROW_ROW_BYTES = padded_row_bytes(2 * RT);
    static constexpr int NARROW_BYTES = 16 * NARROW_ROW_BYTES;
    static constexpr int THREADS_MAX = 256;
};

// Where a row's piece of eight columns lies in a warp's tile: eight rows' pieces are in different banks.
template <int PIECES> __device__ __forceinline__ u32 tile_place(u32 row, u32 piece) {
    const u32 turn = PIECES >= 8 ? row % 8 : row / 2 % 4;
    return (row * PIECES + (piece ^ turn)) * 16;
}

// `narrow_sums` is [blocks, rows, RANK] and `weight_sums` [splits, weight rows, RANK]; the rows are those of this launch.
template <typename T, int RT>
__device__ __forceinline__ void both(const Spans& spans, const T* wide, u64 stride, const T* narrow, u32 narrow_stride,
                                     const T* weight, float* narrow_sums, float* weight_sums, u32 rows, u32 weight_rows,
                                     u32 rank, u32 block_rows) {
    using Shape = Both<RT>;
    constexpr int RANK = Shape::RANK, STAGES = Shape::STAGES, PIECES = Shape::PIECES, STEPS = Shape::WARP_COLS / 16;
    extern __shared__ __align__(16) u8 shared[];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const u32 g = lane / 4, t = lane % 4;
    u32 block = 0;
    const Span span = spans.of_block(blockIdx.x, block);
    const u32 col0 = (block * warps + warp) * Shape::WARP_COLS;
    const u32 cols = col0 < span.len ? min(u32(span.len) - col0, u32(Shape::WARP_COLS)) : 0;
    const u32 begin = blockIdx.y * block_rows, end = min(begin + block_rows, rows);

    const u32 stage_bytes = warps * Shape::TILE_BYTES + Shape::NARROW_BYTES;
    const u32 ring = shared_address(shared);
    float* sums = reinterpret_cast<float*>(shared + STAGES * stage_bytes);
    const T* wide_at = wide + span.start + col0;
    const T* narrow_at = narrow + span.narrow;

    const auto fetch = [&](u32 row0, u32 stage) {
        if (row0 < end) {
            const u32 at = ring + stage * stage_bytes;
            const u32 tile = at + warp * Shape::TILE_BYTES;
#pragma unroll
            for (int i = 0; i < PIECES / 2; i++) {
                const u32 index = i * WARP + lane, row = index / PIECES, piece = index % PIECES;
                const bool valid = row0 + row < end && 8 * piece < cols;
                copy16(tile + tile_place<PIECES>(row, piece), wide_at + (row0 + row) * stride + 8 * piece, valid);
            }
            const u32 index = threadIdx.x, row = index / (2 * RT), piece = index % (2 * RT);
            if (row < 16) {
                const T* from = narrow_at + u64(row0 + row) * narrow_stride;
                const u32 to = at + warps * Shape::TILE_BYTES + row * Shape::NARROW_ROW_BYTES + piece * 16;
                copy_piece(to, from, piece, rank, row0 + row < end);
            }
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
        float* to = narrow_sums + (u64(blockIdx.x) * rows + row0) * RANK;
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
        const u32 at = ring + stage * stage_bytes;
        const u32 tile = at + warp * Shape::TILE_BYTES, narrow_tile = at + warps * Shape::TILE_BYTES;
        u32 h[RT][4];
#pragma unroll
        for (int m = 0; m < RT; m++) {
            const u32 row = lane / 16 * 8 + lane % 8, piece = 2 * m + lane / 8 % 2;
            load_matrices_transposed(h[m], narrow_tile + row * Shape::NARROW_ROW_BYTES + piece * 16);
        }
        float dh[2 * RT][4] = {};
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const u32 from = tile + tile_place<PIECES>(lane % 16, 2 * s + lane / 16);
            u32 x[4], y[4];
            load_matrices(x, from);
            load_matrices_transposed(y, from);
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

// What `both` left behind, summed up: first each four of `narrow`, then each four of `grad`, which is added to and is in
// float32 if `wide_grad`, else as T.
template <typename T, int RANK>
__device__ __forceinline__ void both_sums(const Spans& spans, const float* narrow_sums, const float* weight_sums, T* narrow,
                                          u32 narrow_stride, void* grad, bool wide_grad, u32 rows, u32 weight_rows,
                                          u32 splits, u32 rank, float alpha) {
    const u32 quads = rank / 4, in_row = narrow_stride / 4;
    const u64 item = u64(blockIdx.x) * blockDim.x + threadIdx.x, narrow_items = u64(rows) * in_row;
    float4 sum = {};
    if (item < narrow_items) {
        const u32 row = item / in_row, at = item % in_row, adapter = at / quads, n = at % quads * 4;
        const u32 first = adapter == 0 ? 0 : u32(spans.spans[adapter - 1].blocks_end);
        const u32 last = u32(spans.spans[adapter].blocks_end);
#pragma unroll 4
        for (u32 block = first; block < last; block++) {
            const float* from = narrow_sums + (u64(block) * rows + row) * RANK + n;
            add_to(sum, __ldcg(reinterpret_cast<const float4*>(from)));
        }
        store4(narrow + u64(row) * narrow_stride + 4 * at, alpha, sum, float4{});
        return;
    }
    const u64 rest = item - narrow_items;
    const u32 row = rest / quads, n = rest % quads * 4;
    if (row >= weight_rows) return;
    const u64 at = u64(row) * rank + n;
    const float4 old =
        wide_grad ? load4(static_cast<const float*>(grad) + at) : load4(static_cast<const T*>(grad) + at);
#pragma unroll 4
    for (u32 split = 0; split < splits; split++) {
        const float* from = weight_sums + (u64(split) * weight_rows + row) * RANK + n;
        add_to(sum, __ldcg(reinterpret_cast<const float4*>(from)));
    }
    if (wide_grad) {
        store4(static_cast<float*>(grad) + at, alpha, sum, old);
    } else {
        store4(static_cast<T*>(grad) + at, alpha, sum, old);
    }
}
