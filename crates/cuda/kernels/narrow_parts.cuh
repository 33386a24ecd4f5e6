// What the narrow products share: the dropout mask over runs of columns, copies of short rows, and sums
// that blocks make together.
#pragma once

#include "narrow_ptx.cuh"

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
};

// A row's part in the draw of `RowMask::factor`, mix(mix(column + a) ^ b). The inner mix ends with
// x ^= x >> 16 and the outer one begins with it; it undoes itself, so that only its effect on b is left.
struct RowDraw {
    u32 a, b;

    __device__ __forceinline__ RowDraw() : a(0), b(0) {}
    __device__ __forceinline__ RowDraw(const Mask& mask, u32 row_id) {
        const RowMask row = mask.row(row_id);
        a = row.a;
        b = row.b ^ (row.b >> 16);
    }

    // The draw of another lane's row.
    __device__ __forceinline__ RowDraw of_lane(int lane) const {
        RowDraw draw;
        draw.a = __shfl_sync(FULL_MASK, a, lane);
        draw.b = __shfl_sync(FULL_MASK, b, lane);
        return draw;
    }

    __device__ __forceinline__ u32 operator()(u32 column) const {
        u32 x = column + a;
        x ^= x >> 16;
        x *= 0x7feb352du;
        x ^= x >> 15;
        x *= 0x846ca68bu;
        x ^= b;
        x *= 0x7feb352du;
        x ^= x >> 15;
        x *= 0x846ca68bu;
        return x ^ (x >> 16);
    }
};

// Zeroes what is dropped of eight neighbours, two in a word.
__device__ __forceinline__ void drop8(u32 (&words)[4], const RowDraw& draw, u32 column, u32 threshold) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (draw(column + i) < threshold) words[i / 2] &= i % 2 ? 0x0000ffffu : 0xffff0000u;
    }
}

__device__ __forceinline__ void drop8(float (&x)[8], const RowDraw& draw, u32 column, u32 threshold) {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = draw(column + i) < threshold ? 0.0f : x[i];
}

// Elements `8·piece ..` of a row of `rank` numbers, a multiple of four, with zeros behind them.
template <typename T>
__device__ __forceinline__ void copy_piece(u32 to, const T* matrix, u64 row, u32 piece, u32 rank, bool valid) {
    const u32 at = 8 * piece;
    const T* from = matrix + row * rank + at;
    if (rank % 8 == 0) {
        const bool inside = valid && at < rank;
        copy16(to, inside ? from : matrix, inside);
    } else {
        const bool low = valid && at < rank, high = valid && at + 4 < rank;
        copy8(to, low ? from : matrix, low);
        copy8(to + 8, high ? from + 4 : matrix, high);
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

// Adds up what the warps of all blocks of a tile hold, in a fixed order: the block's warps, then the
// blocks (gridDim.y of them share tile blockIdx.x). Number i of a warp lies at `place(i)` of its SIZE in
// `sums`; `store(i, sum)` is called once for each of the COUNT, by the last block.
template <int COUNT, int SIZE, typename Place, typename Store>
__device__ __forceinline__ void add_up(const float* sums, float* partials, Place place, Store store) {
    const u32 warps = blockDim.x / WARP, splits = gridDim.y;
    float* mine = partials + (u64(blockIdx.x) * splits + blockIdx.y) * COUNT;
    for (u32 i = threadIdx.x; i < COUNT; i += blockDim.x) {
        const float* at = sums + place(i);
        float sum = 0.0f;
        for (u32 w = 0; w < warps; w++) sum += at[w * SIZE];
        if (splits == 1) {
            store(i, sum);
        } else {
            mine[i] = sum;
        }
    }
    if (splits == 1 || !arrives_last(blockIdx.x, splits)) return;
    const float* first = partials + u64(blockIdx.x) * splits * COUNT;
    for (u32 i = threadIdx.x; i < COUNT; i += blockDim.x) {
        float sum = 0.0f;
#pragma unroll 4
        for (u32 s = 0; s < splits; s++) sum += __ldcg(first + s * COUNT + i);
        store(i, sum);
    }
}
