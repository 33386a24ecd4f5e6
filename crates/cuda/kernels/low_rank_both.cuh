// Of several adapters j that share a wide gradient: dh_j = dy_j·b_j and db_j = dy_jᵀ·h_j, where the rank is small,
// in one reading of dy, which is all that counts.
//
// A block has some columns of one adapter and walks down its rows. Its warps form groups: those of a group have the columns
// side by side, and the groups take the rows in turn, 16 at a time. A warp keeps db and b of its columns in registers; what
// its columns add to dh goes through shared memory, where those of a group are summed. Blocks leave their sums behind, and
// `both_sums` adds them up in their order.
#pragma once

#include "low_rank_spans.cuh"
#include "low_rank_tile.cuh"

// RT: sixteens in the rank. The sizes are those of `Both` in src/adapter_low_rank.rs.
template <int RT> struct Both {
    static constexpr int RANK = 16 * RT;
    static constexpr int STAGES = RT == 1 ? 4 : 6;
    static constexpr int WARP_COLS = RT == 4 ? 32 : 64;
    static constexpr int STEPS = WARP_COLS / 16;
    static constexpr int THREADS_MAX = RT == 1 ? 512 : 256;
    static constexpr int GROUP_WARPS_MIN = 4;
    using Tile = WideTile<WARP_COLS>;
    using LowRank = LowRankTile<RT>;
    // Rows of sums in shared memory begin in different banks: those of dh, and of db.
    static constexpr int LOW_RANK_PITCH = RANK + 8, LOW_RANK_SUMS = 16 * LOW_RANK_PITCH;
    static constexpr int WEIGHT_PITCH = RANK + 4, WEIGHT_SUMS = WARP_COLS * WEIGHT_PITCH;
    static_assert(LowRank::THREADS <= GROUP_WARPS_MIN * WARP, "a group copies its low-rank rows");
    static_assert(STEPS * LowRank::BYTES <= Tile::BYTES + 8 * LOW_RANK_SUMS, "b comes through a stage and the sums");
    static_assert(4 * WEIGHT_SUMS <= STAGES * Tile::BYTES + 8 * LOW_RANK_SUMS, "db leaves through all of it");

    // Neighbours that a thread sums up of dh.
    struct alignas(4 * RT) Run {
        float v[RT];
    };
};

// `low_rank_sums` is [blocks, rows, RANK] and `weight_sums` [splits, weight rows, RANK]; the rows are those of this launch.
template <typename T, int RT>
__device__ __forceinline__ void both(const Spans& spans, const T* wide, u64 stride, const T* low_rank, u32 low_rank_stride,
                                     const T* weight, float* low_rank_sums, float* weight_sums, u32 rows, u32 weight_rows,
                                     u32 rank, u32 block_rows, u32 group_warps) {
    using Shape = Both<RT>;
    using Tile = typename Shape::Tile;
    using LowRank = typename Shape::LowRank;
    using Run = typename Shape::Run;
    constexpr int RANK = Shape::RANK, STAGES = Shape::STAGES, STEPS = Shape::STEPS;
    extern __shared__ __align__(16) u8 shared[];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const u32 group = warp / group_warps, groups = warps / group_warps, in_group = warp - group * group_warps;
    const u32 group_threads = group_warps * WARP, thread = threadIdx.x - group * group_threads;
    const u32 g = lane / 4, t = lane % 4;
    u32 block = 0;
    const Span span = spans.of_block(blockIdx.x, block);
    const u32 block_col0 = block * group_warps * Shape::WARP_COLS, col0 = block_col0 + in_group * Shape::WARP_COLS;
    const u32 cols = col0 < span.len ? min(u32(span.len) - col0, u32(Shape::WARP_COLS)) : 0;
    const u32 begin = blockIdx.y * block_rows + 16 * group, end = min((blockIdx.y + 1) * block_rows, rows);
    const u32 advance = 16 * groups;

    const u32 stage_bytes = warps * Tile::BYTES + groups * LowRank::BYTES;
    const u32 ring = shared_address(shared);
    float* sums = reinterpret_cast<float*>(shared + STAGES * stage_bytes);
    const T* wide_at = wide + span.start + col0;
    const T* low_rank_at = low_rank + span.low_rank;
    const auto tile_of = [&](u32 stage) { return Tile{ring + stage * stage_bytes + warp * Tile::BYTES}; };
    const auto low_rank_of = [&](u32 stage) {
        return LowRank{ring + stage * stage_bytes + warps * Tile::BYTES + group * LowRank::BYTES};
    };
    const auto fetch = [&](u32 row0, u32 stage) {
        if (row0 < end) {
            tile_of(stage).fetch(wide_at + row0 * stride, stride, end - row0, cols);
            low_rank_of(stage).fetch(low_rank_at + u64(row0) * low_rank_stride, low_rank_stride, end - row0, rank, thread);
        }
        copies_commit();
    };

    // b comes to where nothing else does before the first step: the last stage, and the sums.
    const auto weight_of = [&](int s) {
        return LowRank{ring + (STAGES - 1) * stage_bytes + (warp * STEPS + s) * LowRank::BYTES};
    };
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const u32 left = cols > 16 * s ? cols - 16 * s : 0;
        const T* from = weight + (span.row + col0 + 16 * s) * rank;
#pragma unroll
        for (int part = 0; part < RT; part++) weight_of(s).fetch(from, rank, left, rank, part * WARP + lane);
    }
    copies_commit();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(begin + s * advance, s);

    // b as the right factor of dy·b: of each sixteen columns and eight ranks, columns 2t, 2t + 1 and 8 more of rank g.
    u32 b[STEPS][2 * RT][2];
    copies_wait<STAGES - 1>();
    __syncwarp();
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        u32 words[RT][4];
        weight_of(s).load_transposed(words);
#pragma unroll
        for (int m = 0; m < RT; m++) {
            b[s][2 * m][0] = words[m][0], b[s][2 * m + 1][0] = words[m][1];
            b[s][2 * m][1] = words[m][2], b[s][2 * m + 1][1] = words[m][3];
        }
    }
    __syncthreads();

    // Adds up what the warps of the group left of the sixteen rows from `row0` on.
    const auto pass_on = [&](u32 row0, u32 turn) {
        const float* from = sums + (turn * warps + group * group_warps) * Shape::LOW_RANK_SUMS;
        float* to = low_rank_sums + (u64(blockIdx.x) * rows + row0) * RANK;
        for (u32 i = RT * thread; i < 16 * RANK; i += RT * group_threads) {
            const float* at = from + i / RANK * Shape::LOW_RANK_PITCH + i % RANK;
            Run sum = {};
#pragma unroll 4
            for (u32 w = 0; w < group_warps; w++) {
                const Run share = *reinterpret_cast<const Run*>(at + w * Shape::LOW_RANK_SUMS);
#pragma unroll
                for (int n = 0; n < RT; n++) sum.v[n] += share.v[n];
            }
            if (row0 + i / RANK < end) *reinterpret_cast<Run*>(to + i) = sum;
        }
    };

    float acc[RT][2 * STEPS][4] = {};
    u32 stage = 0, turn = 0, row0 = begin;
    for (; row0 < end; row0 += advance) {
        copies_wait<STAGES - 2>();
        group_barrier(group, group_threads);
        fetch(row0 + advance * (STAGES - 1), stage == 0 ? STAGES - 1 : stage - 1);
        if (row0 > begin) pass_on(row0 - advance, turn ^ 1);
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
        float* mine = sums + (turn * warps + warp) * Shape::LOW_RANK_SUMS;
#pragma unroll
        for (int j = 0; j < 2 * RT; j++) {
            float* to = mine + g * Shape::LOW_RANK_PITCH + 8 * j + 2 * t;
            *reinterpret_cast<float2*>(to) = make_float2(dh[j][0], dh[j][1]);
            *reinterpret_cast<float2*>(to + 8 * Shape::LOW_RANK_PITCH) = make_float2(dh[j][2], dh[j][3]);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        turn ^= 1;
    }
    copies_wait<0>();
    __syncthreads();
    if (row0 > begin) pass_on(row0 - advance, turn ^ 1);
    __syncthreads();

    // db of the block's columns: the groups' are added up, and lie in memory as they do here.
    float* all = reinterpret_cast<float*>(shared);
    float* mine = all + warp * Shape::WEIGHT_SUMS + 2 * t * Shape::WEIGHT_PITCH + g;
#pragma unroll
    for (int m = 0; m < RT; m++) {
#pragma unroll
        for (int j = 0; j < 2 * STEPS; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                mine[(8 * j + i % 2) * Shape::WEIGHT_PITCH + 16 * m + i / 2 * 8] = acc[m][j][i];
            }
        }
    }
    __syncthreads();
    const u32 block_cols = min(u32(span.len) - block_col0, group_warps * Shape::WARP_COLS);
    float* to = weight_sums + (u64(blockIdx.y) * weight_rows + span.row + block_col0) * RANK;
    for (u32 i = 4 * threadIdx.x; i < block_cols * RANK; i += 4 * blockDim.x) {
        // The columns of a group's warps follow each other.
        const float* at = all + i / RANK * Shape::WEIGHT_PITCH + i % RANK;
        float4 sum = {};
        for (u32 k = 0; k < groups; k++) {
            add_to(sum, *reinterpret_cast<const float4*>(at + k * group_warps * Shape::WEIGHT_SUMS));
        }
        *reinterpret_cast<float4*>(to + i) = sum;
    }
}

// What `both` left behind, summed up, four numbers for each lane: the first `low_rank_blocks` make `low_rank`, the others
// `grad`, which is added to and is in float32 if `wide_grad`, else as T.
template <typename T, int RANK>
__device__ __forceinline__ void both_sums(const Spans& spans, const float* low_rank_sums, const float* weight_sums,
                                          T* low_rank, u32 low_rank_stride, void* grad, bool wide_grad, u32 rows,
                                          u32 weight_rows, u32 splits, u32 rank, float alpha) {
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
