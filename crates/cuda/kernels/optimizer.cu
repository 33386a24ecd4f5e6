// Once per update: the global norm and the clip factor.
#include "optimizer.cuh"

#define NORM_THREADS 512
#define FACTOR_THREADS 1024
#define SUM_THREADS 256

struct NormRow {
    const void* gradient;
    u64 len;
    // The first block of the grid that belongs to a later row.
    u32 end;
    // Elements that a block sums.
    u32 part_len;
};

using NormTable = Table<NormRow, 168>;
static_assert(sizeof(NormRow) == 3 * 8, "rows without gaps");

template <int N> __device__ __forceinline__ float squares_of(const float (&v)[N]) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) squares = fmaf(v[i], v[i], squares);
    return squares;
}

// One part of a gradient's sum of squares per block. The few squares of a pack are added as floats,
// packs in double precision.
template <typename G>
__device__ __forceinline__ void square_sums(const NormTable& table, u32 count, double* partial) {
    constexpr int N = Pack<G>::N;
    u32 block;
    const NormRow& row = table.rows[find_row(table, count, blockIdx.x, block)];
    const G* gradient = static_cast<const G*>(row.gradient);
    const u64 start = u64(block) * row.part_len, end = min(start + row.part_len, row.len);
    u64 at = start + threadIdx.x * N;
    float v[N];
    double sum = 0.0;
    if (reinterpret_cast<u64>(gradient) % 16 == 0) {
#pragma unroll 4
        for (; at + N <= end; at += NORM_THREADS * N) {
            load_floats(gradient + at, v);
            sum += double(squares_of(v));
        }
    } else {
        // A matrix inside a parameter may begin anywhere; the sums are the same.
        for (; at + N <= end; at += NORM_THREADS * N) {
            load_some(gradient + at, N, false, v);
            sum += double(squares_of(v));
        }
    }
    if (at < end) {
        load_some(gradient + at, int(end - at), false, v);
        sum += double(squares_of(v));
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// A block's sum of so many parts of one gradient; there are at most as many as threads.
__device__ __forceinline__ double parts_sum(const double* partial, u32 parts) {
    double sum = 0.0;
    for (u32 part = threadIdx.x; part < parts; part += blockDim.x) sum += partial[part];
    return block_sum(sum);
}

// The sum of each row's parts, by a block for each.
PLIMSOLL_EXPORT __launch_bounds__(SUM_THREADS)
    row_sums(TABLE(NormTable), const double* partial, double* sums) {
    wait_for_previous_kernel();
    const u32 row = blockIdx.x;
    const u32 first = row == 0 ? 0 : table.rows[row - 1].end;
    const double sum = parts_sum(partial + first, table.rows[row].end - first);
    if (threadIdx.x == 0) sums[row] = sum;
}

// The same of a single gradient. Where its norm is not finite, `guard = [spoilt, factor]` is no number from here on.
PLIMSOLL_EXPORT __launch_bounds__(SUM_THREADS)
    guarded_sum(const double* partial, u32 parts, double* to, float* guard) {
    wait_for_previous_kernel();
    const double sum = parts_sum(partial, parts);
    if (threadIdx.x != 0) return;
    *to = sum;
    const float spoilt = isfinite(float(sqrt(sum))) ? guard[0] : __int_as_float(0x7fffffff);
    guard[0] = spoilt;
    guard[1] = 1.0f + spoilt;
}

// `clip = [norm, factor]` from the sums of all gradients, by one block. An infinite `max_norm` never clips. Where the
// norm is not finite the factor is no number, and the update leaves everything as it is. `unscale`, where the loss is
// scaled, is what takes the scale out of norm and gradients.
PLIMSOLL_EXPORT __launch_bounds__(FACTOR_THREADS)
    clip_factor(const double* sums, const float* unscale, float* clip, u32 count, float max_norm) {
    wait_for_previous_kernel();
    double sum = 0.0;
#pragma unroll 4
    for (u32 at = threadIdx.x; at < count; at += blockDim.x) sum += sums[at];
    sum = block_sum(sum);
    if (threadIdx.x != 0) return;
    const float inverse = unscale == nullptr ? 1.0f : *unscale;
    const float norm = float(sqrt(sum) * double(inverse));
    clip[0] = norm;
    clip[1] = isfinite(norm) ? inverse * fminf(1.0f, max_norm / (norm + 1e-6f)) : __int_as_float(0x7fffffff);
}

#define NORM_KERNELS(suffix, G)                                                                                        \
    PLIMSOLL_EXPORT __launch_bounds__(NORM_THREADS) square_sums_##suffix(TABLE(NormTable), double* partial) {          \
        wait_for_previous_kernel();                                                                                    \
        square_sums<G>(table, count, partial);                                                                         \
    }

PLIMSOLL_FOR_EACH_TYPE(NORM_KERNELS)
