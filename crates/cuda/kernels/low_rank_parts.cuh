// What the low-rank products share: the dropout mask over runs of columns, copies of short rows, and sums
// that blocks make together.
#pragma once

#include "low_rank_ptx.cuh"

// Which elements of a product's wide matrix are dropped; none if `row_ids` is null. What is kept is not
// scaled here: the scale is the same for all, and part of the product's alpha.
struct Dropping {
    const u32* row_ids;
    const u32* key;
    u32 site, threshold;

    __device__ __forceinline__ bool any() const { return row_ids != nullptr; }

    __device__ __forceinline__ Mask mask() const {
        u32 words[4] = {};
        if (any()) words[0] = key[0], words[1] = key[1], words[2] = key[2], words[3] = key[3];
        return Mask(words, site, threshold, 1.0f);
    }

    // For draws in the high half of a word, whatever is below them; all are dropped if p is one.
    __device__ __forceinline__ u32 limit() const { return threshold < 0x10000 ? threshold << 16 : 0xffffffffu; }
};

// A row's part in the draw of `RowMask::factor`. There b is joined before x ^= x >> 15; joined behind it, as b ^ (b >> 15),
// it costs no instruction.
struct RowDraw {
    u32 a, b;

    __device__ __forceinline__ RowDraw() : a(0), b(0) {}
    __device__ __forceinline__ RowDraw(const Mask& mask, u32 row_id) {
        const RowMask row = mask.row(row_id);
        a = row.a;
        b = row.b ^ (row.b >> 15);
    }

    // The draw of another lane's row.
    __device__ __forceinline__ RowDraw of_lane(int lane) const {
        RowDraw draw;
        draw.a = __shfl_sync(FULL_MASK, a, lane);
        draw.b = __shfl_sync(FULL_MASK, b, lane);
        return draw;
    }

    // Whether the two columns of a pair are dropped. The last x ^= x >> 16 leaves the high half as it was,
    // and the low half is wanted in a high one.
    __device__ __forceinline__ void operator()(u32 pair, u32 limit, bool& even, bool& odd) const {
        u32 x = pair + a;
        x ^= x >> 16;
        x *= 0x7feb352du;
        x ^= (x >> 15) ^ b;
        x *= 0x846ca68bu;
        odd = x < limit;
        even = ((x << 16) ^ (x & 0xffff0000u)) < limit;
    }
};

// Zeroes what is dropped of eight neighbours, two in a word; `column` is the first, a multiple of two.
__device__ __forceinline__ void drop8(u32 (&words)[4], const RowDraw& draw, u32 column, u32 limit) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bool even, odd;
        draw(column / 2 + i, limit, even, odd);
        if (even) words[i] &= 0xffff0000u;
        if (odd) words[i] &= 0x0000ffffu;
    }
}

__device__ __forceinline__ void drop8(float (&x)[8], const RowDraw& draw, u32 column, u32 limit) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bool even, odd;
        draw(column / 2 + i, limit, even, odd);
        x[2 * i] = even ? 0.0f : x[2 * i];
        x[2 * i + 1] = odd ? 0.0f : x[2 * i + 1];
    }
}

// Elements `8·piece ..` of a row of `rank` numbers, a multiple of four, with zeros behind them.
template <typename T>
__device__ __forceinline__ void copy_piece(u32 to, const T* row, u32 piece, u32 rank, bool valid) {
    const u32 at = 8 * piece;
    const T* from = row + at;
    if (rank % 8 == 0) {
        copy16(to, from, valid && at < rank);
    } else {
        copy8(to, from, valid && at < rank);
        copy8(to + 8, from + 4, valid && at + 4 < rank);
    }
}

// Bytes from one short row to the next in shared memory: an odd number of pieces, so that eight rows lie
// in different banks.
__host__ __device__ constexpr int padded_row_bytes(int pieces) { return 16 * (pieces | 1); }

// How many blocks have added their share of a tile; zero again once a launch is over.
#define ARRIVALS_MAX 1024
__device__ u32 arrivals[ARRIVALS_MAX];

// Whether this block is the last of `count` to come here for a tile; it then sees what the others wrote.
__device__ __forceinline__ bool arrives_last(u32 tile, u32 count) {
    __shared__ u32 before;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        before = atomicAdd(&arrivals[tile], 1);
        if (before == count - 1) arrivals[tile] = 0;
    }
    __syncthreads();
    __threadfence();
    return before == count - 1;
}

// Four neighbours, aligned.
__device__ __forceinline__ float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }

template <typename T> __device__ __forceinline__ float4 load4(const T* from) {
    const uint2 words = *reinterpret_cast<const uint2*>(from);
    const T* v = reinterpret_cast<const T*>(&words);
    return make_float4(to_float(v[0]), to_float(v[1]), to_float(v[2]), to_float(v[3]));
}

// onto + α·x.
template <typename T>
__device__ __forceinline__ void store4(T* to, float alpha, const float4& x, const float4& onto) {
    struct alignas(4 * sizeof(T)) {
        T v[4];
    } four;
    four.v[0] = from_float<T>(fmaf(alpha, x.x, onto.x));
    four.v[1] = from_float<T>(fmaf(alpha, x.y, onto.y));
    four.v[2] = from_float<T>(fmaf(alpha, x.z, onto.z));
    four.v[3] = from_float<T>(fmaf(alpha, x.w, onto.w));
    *reinterpret_cast<decltype(four)*>(to) = four;
}

// The same for gradients, which are in float32 if `wide`, else as T.
template <typename T> __device__ __forceinline__ float4 load_gradient(const void* grad, bool wide, u64 at) {
    return wide ? load4(static_cast<const float*>(grad) + at) : load4(static_cast<const T*>(grad) + at);
}

template <typename T>
__device__ __forceinline__ void store_gradient(void* grad, bool wide, u64 at, float alpha, const float4& x,
                                               const float4& onto) {
    if (wide) {
        store4(static_cast<float*>(grad) + at, alpha, x, onto);
    } else {
        store4(static_cast<T*>(grad) + at, alpha, x, onto);
    }
}

__device__ __forceinline__ void add_to(float4& sum, const float4& x) {
    sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
}

// Warps of a block that adds up parts: `SUM_WARPS` in src/low_rank.rs.
#define SUM_WARPS 4

// Four neighbours of each of `count` parts `apart` from each other, for each lane, by all warps of a block: a warp adds
// every SUM_WARPSth part, and the first has the total, which adds up the warps in their order. The parts come through
// shared memory, where all are under way at a time; with loads, the compiler has two or three.
__device__ __forceinline__ float4 add_parts(const float* parts, u64 apart, u32 count, bool valid) {
    constexpr int BATCH = 36 / SUM_WARPS;
    __shared__ float4 batch[BATCH][SUM_WARPS * WARP];
    const u32 warp = threadIdx.x / WARP;
    float4 sum = {};
    for (u32 from = warp; valid && from < count; from += BATCH * SUM_WARPS) {
        const float* at = parts + from * apart;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (from + i * SUM_WARPS >= count) break;
            copy16(shared_address(&batch[i][threadIdx.x]), at + i * (SUM_WARPS * apart), true);
        }
        copies_commit();
        copies_wait<0>();
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (from + i * SUM_WARPS < count) add_to(sum, batch[i][threadIdx.x]);
        }
    }
    batch[0][threadIdx.x] = sum;
    __syncthreads();
    if (warp == 0) {
#pragma unroll
        for (int w = 1; w < SUM_WARPS; w++) add_to(sum, batch[0][w * WARP + threadIdx.x]);
    }
    return sum;
}

// Adds up what all blocks of a tile hold, in their order (gridDim.y of them share tile blockIdx.x), four
// of COUNT numbers at a time: `share(i)` are i .. i + 4 of this block. The last block calls `store(i, sum,
// fetch(i))` once for each four; what is fetched is under way while it reads the sums.
template <int COUNT, typename Share, typename Fetch, typename Store>
__device__ __forceinline__ void add_up(float* partials, Share share, Fetch fetch, Store store) {
    // Of other blocks' sums read at a time.
    constexpr int BATCH = 8;
    const u32 splits = gridDim.y;
    float* first = partials + u64(blockIdx.x) * splits * COUNT;
    float* mine = first + blockIdx.y * COUNT;
    for (u32 i = 4 * threadIdx.x; i < COUNT; i += 4 * blockDim.x) {
        if (splits == 1) {
            const auto old = fetch(i);
            store(i, share(i), old);
        } else {
            *reinterpret_cast<float4*>(mine + i) = share(i);
        }
    }
    if (splits == 1 || !arrives_last(blockIdx.x, splits)) return;
    for (u32 i = 4 * threadIdx.x; i < COUNT; i += 4 * blockDim.x) {
        const auto old = fetch(i);
        float4 sum = {};
        for (u32 from = 0; from < splits; from += BATCH) {
            float4 shares[BATCH] = {};
#pragma unroll
            for (int s = 0; s < BATCH; s++) {
                const float* at = first + (from + s) * COUNT + i;
                if (from + s < splits) shares[s] = __ldcg(reinterpret_cast<const float4*>(at));
            }
#pragma unroll
            for (int s = 0; s < BATCH; s++) add_to(sum, shares[s]);
        }
        store(i, sum, old);
    }
}
