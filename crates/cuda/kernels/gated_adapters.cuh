// act(gate)·up and its gradient, where gate and up are columns of a stored product and what adapters of small rank add to
// it: gate_up [rows, 2·cols] + α·low-rank·Bᵀ. The sum is made in registers and kept nowhere, so nothing wide is moved but
// what the plain operators move.
//
// A warp keeps the second matrices of 32 columns of either half in registers and walks down the rows, 16 at a time. A
// product's columns may come in any order: column n of tile j stands for 8·(n / 2) + 2·j + n % 2, which makes the results
// of a lane eight neighbours in each of two rows. A lane reads from shared memory what it copied there itself, so
// nobody waits for anybody else. Of the sixteen summed over in a step, a lane has the four neighbours 4t.. of both factors.
//
// The gradient that comes in may lack its last share, drop(α·dh·A): it is added the same way.
#pragma once

#include "curves.cuh"
#include "low_rank_parts.cuh"

// How many steps of rows a warp has under way, less one.
#define GATED_STAGES 3
#define GATED_WARPS 4

// One half's adapter: its second matrix [cols, rank], and the first of its low-rank columns. Null if it has none.
template <typename T> struct Half {
    const T* weight;
    const T* low_rank;
};

// What an adapter's first matrix `a` [rank, cols] gives to a gradient, whose `alpha` has the scale of what dropout keeps
// in it. Null if there is none.
template <typename T> struct Share {
    const T* dh;
    const T* a;
    Dropping dropping;
    float alpha;
};

template <typename T, int STEPS, bool GRADIENT> struct Gating {
    // Small cards have room for no more.
    static constexpr int STAGES = GRADIENT && STEPS == 4 ? 2 : GATED_STAGES;
    static constexpr int COLS = 32;
    static constexpr int RUN_BYTES = 2 * 512;
    static constexpr int WIDE = GRADIENT ? 3 : 2;
    static constexpr int LOW_RANK_BYTES = STEPS * 512;
    static constexpr int STAGE_BYTES = WIDE * RUN_BYTES + WIDE * LOW_RANK_BYTES + (GRADIENT ? 128 : 0);
    static constexpr int IDS_AT = WIDE * RUN_BYTES + WIDE * LOW_RANK_BYTES;

    // What a warp works on.
    const T* gate_up;
    const T* dy;
    Half<T> halves[2];
    Share<T> share;
    u32 low_rank_stride, rows_end, cols, rank;
    // Of this lane: its first column and whether it is there, its row of sixteen, and its place in a quad.
    u32 col, g, t;
    bool inside;

    // Copies of sixteen rows get under way.
    __device__ __forceinline__ void fetch(u32 row0, u32 at) const {
        const u32 lane = 4 * g + t;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 row = row0 + 8 * half + g;
            const bool valid = row < rows_end;
            const T* from = gate_up + u64(row) * 2 * cols + col;
            const u32 to = at + half * 512 + lane * 16;
            copy16(to, from, valid && inside);
            copy16(to + RUN_BYTES, from + cols, valid && inside);
            if constexpr (GRADIENT) copy16(to + 2 * RUN_BYTES, dy + u64(row) * cols + col, valid && inside);
#pragma unroll
            for (int side = 0; side < 2; side++) {
                if (halves[side].weight == nullptr) continue;
                const T* low_rank = halves[side].low_rank + u64(row) * low_rank_stride + 4 * t;
                const u32 low_rank_to = at + WIDE * RUN_BYTES + side * LOW_RANK_BYTES + half * 256 + lane * 8;
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    copy8(low_rank_to + 512 * s, low_rank + 16 * s, valid && 16 * s + 4 * t < rank);
                }
            }
            if constexpr (GRADIENT) {
                if (share.a == nullptr) continue;
                const T* dh = share.dh + u64(row) * rank + 4 * t;
                const u32 dh_to = at + WIDE * RUN_BYTES + 2 * LOW_RANK_BYTES + half * 256 + lane * 8;
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    copy8(dh_to + 512 * s, dh + 16 * s, valid && 16 * s + 4 * t < rank);
                }
            }
        }
        if constexpr (GRADIENT) {
            const u32 row = row0 + lane % 16;
            if (share.dropping.any()) copy4(at + IDS_AT + lane * 4, share.dropping.row_ids + row, row < rows_end);
        }
    }

    // The second matrices of the warp's columns.
    __device__ __forceinline__ void load_weights(u32 col0, u32 (&b)[2][4][STEPS][2]) const {
#pragma unroll
        for (int side = 0; side < 2; side++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const u32 weight_col = col0 + g / 2 * 8 + 2 * j + g % 2;
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    const u32 k = 16 * s + 4 * t;
                    const bool valid = halves[side].weight != nullptr && weight_col < cols && k < rank;
                    const T* at = halves[side].weight + u64(weight_col) * rank + k;
                    const uint2 words = valid ? *reinterpret_cast<const uint2*>(at) : uint2{};
                    b[side][j][s][0] = words.x, b[side][j][s][1] = words.y;
                }
            }
        }
    }

    // The first matrix of the warp's columns, which lies the other way round.
    __device__ __forceinline__ void load_share(u32 col0, u32 (&b)[4][STEPS][2]) const {
        const u32 run = col0 + g / 2 * 8, pick = g % 2 ? 0x7632 : 0x5410;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            u32 w[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 k = 16 * s + 4 * t + i;
                const bool valid = share.a != nullptr && k < rank && run < cols;
                const uint4 words = valid ? *reinterpret_cast<const uint4*>(share.a + u64(k) * cols + run) : uint4{};
                w[i][0] = words.x, w[i][1] = words.y, w[i][2] = words.z, w[i][3] = words.w;
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                b[j][s][0] = __byte_perm(w[0][j], w[1][j], pick);
                b[j][s][1] = __byte_perm(w[2][j], w[3][j], pick);
            }
        }
    }

    // What one half's adapter adds to sixteen rows, or the last share is, without its scale.
    __device__ __forceinline__ void product(u32 at, int side, const u32 (&b)[4][STEPS][2], float (&acc)[4][4]) const {
        const u32 low_rank_at = at + WIDE * RUN_BYTES + side * LOW_RANK_BYTES + (4 * g + t) * 8;
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) acc[j][i] = 0.0f;
        }
        if ((side < 2 ? halves[side % 2].weight : share.a) == nullptr) return;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const uint2 top = load_shared8(low_rank_at + 512 * s);
            const uint2 bottom = load_shared8(low_rank_at + 512 * s + 256);
            const u32 a[4] = {top.x, bottom.x, top.y, bottom.y};
#pragma unroll
            for (int j = 0; j < 4; j++) mma<T>(acc[j], a, b[j][s][0], b[j][s][1]);
        }
    }
};

// Eight neighbours in shared memory.
template <typename T> __device__ __forceinline__ Pack<T> load_run(u32 at) {
    u32 words[4];
    load_shared16(words, at);
    Pack<T> pack;
    *reinterpret_cast<uint4*>(&pack) = make_uint4(words[0], words[1], words[2], words[3]);
    return pack;
}

// `out` [rows, cols], or [rows, 2·cols] for the gradient, which may be `gate_up`: a lane writes what it read. `value`
// [rows, cols], unless null, is what the plain kind makes, beside the gradient.
template <typename T, typename Curve, int STEPS, bool GRADIENT>
__device__ __forceinline__ void gated_adapters(const T* gate_up, const T* dy, Half<T> gate_half, Half<T> up_half,
                                               const Share<T>& share, T* out, T* value, u32 low_rank_stride, u32 rows,
                                               u32 cols, u32 rank, u32 block_rows, float alpha) {
    using Work = Gating<T, STEPS, GRADIENT>;
    extern __shared__ __align__(16) u8 shared[];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 col0 = (blockIdx.x * GATED_WARPS + warp) * Work::COLS;
    if (col0 >= cols) return;
    const u32 begin = blockIdx.y * block_rows, end = min(begin + block_rows, rows);
    const u32 g = lane / 4, t = lane % 4, col = col0 + 8 * t;
    const Work work = {gate_up, dy, {gate_half, up_half}, share, low_rank_stride, end, cols, rank, col, g, t, col < cols};
    const u32 ring = shared_address(shared) + warp * Work::STAGES * Work::STAGE_BYTES;
#pragma unroll
    for (int s = 0; s < Work::STAGES - 1; s++) {
        if (begin + 16 * s < end) work.fetch(begin + 16 * s, ring + s * Work::STAGE_BYTES);
        copies_commit();
    }
    u32 b[2][4][STEPS][2];
    work.load_weights(col0, b);
    u32 a[4][STEPS][2];
    if constexpr (GRADIENT) work.load_share(col0, a);
    const Mask mask = share.dropping.mask();
    const u32 limit = share.dropping.limit();

    u32 stage = 0;
    for (u32 row0 = begin; row0 < end; row0 += 16) {
        copies_wait<Work::STAGES - 2>();
        const u32 next = row0 + 16 * (Work::STAGES - 1), free = stage == 0 ? Work::STAGES - 1 : stage - 1;
        if (next < end) work.fetch(next, ring + free * Work::STAGE_BYTES);
        copies_commit();
        const u32 at = ring + stage * Work::STAGE_BYTES;
        float gate_sums[4][4], up_sums[4][4];
        work.product(at, 0, b[0], gate_sums);
        work.product(at, 1, b[1], up_sums);
        float share_sums[4][4];
        RowDraw draw;
        if constexpr (GRADIENT) {
            work.product(at, 2, a, share_sums);
            // Of sixteen rows; two lanes draw for each.
            if (share.dropping.any()) draw = RowDraw(mask, load_shared4(at + Work::IDS_AT + lane * 4));
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 row = row0 + 8 * half + g, run = at + half * 512 + lane * 16;
            Pack<T> gate = load_run<T>(run), up = load_run<T>(run + Work::RUN_BYTES), d = {};
            float added[8];
            if constexpr (GRADIENT) {
                d = load_run<T>(run + 2 * Work::RUN_BYTES);
#pragma unroll
                for (int i = 0; i < 8; i++) added[i] = share_sums[i / 2][2 * half + i % 2];
                if (share.dropping.any()) drop8(added, draw.of_lane(8 * half + g), col, limit);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float x = fmaf(alpha, gate_sums[i / 2][2 * half + i % 2], to_float(gate.v[i]));
                const float y = fmaf(alpha, up_sums[i / 2][2 * half + i % 2], to_float(up.v[i]));
                if constexpr (GRADIENT) {
                    const float2 curve = Curve::both(x);
                    const float given = fmaf(share.alpha, added[i], to_float(d.v[i]));
                    gate.v[i] = from_float<T>(given * y * curve.y);
                    up.v[i] = from_float<T>(given * curve.x);
                    d.v[i] = from_float<T>(curve.x * y);
                } else {
                    gate.v[i] = from_float<T>(Curve::value(x) * y);
                }
            }
            if (row < end && work.inside) {
                T* to = out + u64(row) * (GRADIENT ? 2 * cols : cols) + col;
                store_pack(to, gate);
                if constexpr (GRADIENT) {
                    store_pack(to + cols, up);
                    if (value != nullptr) store_pack(value + u64(row) * cols + col, d);
                }
            }
        }
        stage = stage + 1 == Work::STAGES ? 0 : stage + 1;
    }
}

#define GATED_KERNELS(T, suffix, curve, room)                                                                          \
    PLIMSOLL_EXPORT __launch_bounds__(32 * GATED_WARPS)                                                                \
        gated_##curve##_##suffix##_##room(const T* gate_up, const T* gate_b, const T* up_b, const T* gate_low_rank,      \
                                          const T* up_low_rank, T* out, u32 low_rank_stride, u32 rows, u32 cols, u32 rank, \
                                          u32 block_rows, float alpha) {                                               \
        wait_for_previous_kernel();                                                                                    \
        gated_adapters<T, curve, room / 16, false>(gate_up, nullptr, Half<T>{gate_b, gate_low_rank},                     \
                                                   Half<T>{up_b, up_low_rank}, Share<T>{}, out, nullptr, low_rank_stride,  \
                                                   rows, cols, rank, block_rows, alpha);                               \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(32 * GATED_WARPS)                                                                \
        gated_grad_##curve##_##suffix##_##room(                                                                        \
            const T* gate_up, const T* dy, const T* gate_b, const T* up_b, const T* gate_low_rank, const T* up_low_rank,   \
            T* out, u32 low_rank_stride, u32 rows, u32 cols, u32 rank, u32 block_rows, float alpha, const T* dh,         \
            const T* a, float share_alpha, const u32* row_ids, const u32* key, u32 site, u32 threshold, T* value) {    \
        wait_for_previous_kernel();                                                                                    \
        const Share<T> share = {dh, a, {row_ids, key, site, threshold}, share_alpha};                                  \
        gated_adapters<T, curve, room / 16, true>(gate_up, dy, Half<T>{gate_b, gate_low_rank}, Half<T>{up_b, up_low_rank}, \
                                                  share, out, value, low_rank_stride, rows, cols, rank, block_rows, alpha); \
    }

#define GATED_ROOMS(T, suffix, curve)                                                                                  \
    GATED_KERNELS(T, suffix, curve, 16)                                                                                \
    GATED_KERNELS(T, suffix, curve, 32)                                                                                \
    GATED_KERNELS(T, suffix, curve, 64)

#define GATED_CURVES(T, suffix)                                                                                        \
    GATED_ROOMS(T, suffix, silu)                                                                                       \
    GATED_ROOMS(T, suffix, gelu)                                                                                       \
    GATED_ROOMS(T, suffix, gelu_tanh)                                                                                  \
    GATED_ROOMS(T, suffix, relu)                                                                                       \
    GATED_ROOMS(T, suffix, relu2)
