// A bias of attention scores by the distance between key and query, learned for buckets of distances.
#include "plimsoll.cuh"

// A thread has one entry.
template <typename P>
__device__ __forceinline__ void position_bias(const P* table, const int* bucket_of, float* out, u32 heads,
                                              u32 distances, int buckets) {
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= heads * distances) return;
    const u32 head = index / distances;
    const int bucket = bucket_of[index % distances];
    // A bucket outside the table shows as NaN.
    const bool known = bucket >= 0 && bucket < buckets;
    out[index] = known ? to_float(table[u64(bucket) * heads + head]) : __int_as_float(0x7fffffff);
}

// A thread has one entry of the table and adds up its distances, in order.
template <typename G>
__device__ __forceinline__ void position_bias_grad(const float* d_bias, const int* bucket_of, G* table, u32 heads,
                                                   u32 distances, u32 buckets) {
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= heads * buckets) return;
    const u32 bucket = index / heads, head = index % heads;
    float sum = to_float(table[index]);
    for (u32 distance = 0; distance < distances; distance++) {
        if (bucket_of[distance] == int(bucket)) sum += d_bias[u64(head) * distances + distance];
    }
    table[index] = from_float<G>(sum);
}

#define POSITION_BIAS(SUFFIX, TYPE)                                                                                   \
    PLIMSOLL_EXPORT __launch_bounds__(256) position_bias_##SUFFIX(const TYPE* table, const int* bucket_of, float* out, \
                                                                  u32 heads, u32 distances, int buckets) {            \
        wait_for_previous_kernel();                                                                                   \
        position_bias(table, bucket_of, out, heads, distances, buckets);                                              \
    }                                                                                                                 \
    PLIMSOLL_EXPORT __launch_bounds__(256) position_bias_grad_##SUFFIX(                                               \
        const float* d_bias, const int* bucket_of, TYPE* table, u32 heads, u32 distances, u32 buckets) {              \
        wait_for_previous_kernel();                                                                                   \
        position_bias_grad(d_bias, bucket_of, table, heads, distances, buckets);                                      \
    }
PLIMSOLL_FOR_EACH_TYPE(POSITION_BIAS)
