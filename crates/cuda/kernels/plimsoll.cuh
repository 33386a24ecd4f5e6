// What every kernel file starts from: storage types, wide loads, reductions in a fixed order, the
// dropout mask. Compiled by NVRTC: no host code, no standard library, no CUB.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef unsigned char u8;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef int int32_t;

using bf16 = __nv_bfloat16;
using f16 = __half;

// Storage is any of these; arithmetic is always in float.
#define PLIMSOLL_EXPORT extern "C" __global__ void
// PLIMSOLL_FOR_EACH_TYPE(M) expands M(suffix, type) for every storage type.
#define PLIMSOLL_FOR_EACH_TYPE(M) M(f32, float) M(bf16, bf16) M(f16, f16)

#define WARP 32
#define FULL_MASK 0xffffffffu

// The first statement of every kernel, for every thread of every block. From Hopper on, blocks are placed while the kernel
// before is ending (`launch.rs`); behind this it has ended, and what it wrote is seen. Only then may blocks of the next
// kernel be placed, so that no kernel runs beside the one before its predecessor. Nothing may be `__restrict__` or read by
// `__ldg`: such reads count on memory that stays as it is as long as the kernel lives, and could be moved before this.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(f16 x) { return __half2float(x); }

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ __forceinline__ f16 from_float<f16>(float x) { return __float2half_rn(x); }

// Sixteen bytes of storage: four floats, or eight of a 16-bit type.
template <typename T> struct alignas(16) Pack {
    static constexpr int N = 16 / sizeof(T);
    T v[N];
};

template <typename T> __device__ __forceinline__ Pack<T> load_pack(const T* from) {
    Pack<T> pack;
    *reinterpret_cast<uint4*>(&pack) = *reinterpret_cast<const uint4*>(from);
    return pack;
}

template <typename T> __device__ __forceinline__ void store_pack(T* to, const Pack<T>& pack) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&pack);
}

// The same through float registers.
template <typename T> __device__ __forceinline__ void load_floats(const T* from, float (&out)[16 / sizeof(T)]) {
    const Pack<T> pack = load_pack(from);
#pragma unroll
    for (int i = 0; i < Pack<T>::N; i++) out[i] = to_float(pack.v[i]);
}

template <typename T> __device__ __forceinline__ void store_floats(T* to, const float (&in)[16 / sizeof(T)]) {
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < Pack<T>::N; i++) pack.v[i] = from_float<T>(in[i]);
    store_pack(to, pack);
}

// The same for rows of any length: up to N elements, one or more packs, in wide accesses if `wide`,
// which says that all N are there and aligned. What is missing reads as zero.
template <typename T, int N>
__device__ __forceinline__ void load_some(const T* from, int count, bool wide, float (&out)[N]) {
    constexpr int P = Pack<T>::N;
    static_assert(N % P == 0, "whole packs");
    if (wide) {
#pragma unroll
        for (int p = 0; p < N; p += P) {
            const Pack<T> pack = load_pack(from + p);
#pragma unroll
            for (int i = 0; i < P; i++) out[p + i] = to_float(pack.v[i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) out[i] = i < count ? to_float(from[i]) : 0.0f;
    }
}

template <typename T, int N>
__device__ __forceinline__ void store_some(T* to, int count, bool wide, const float (&in)[N]) {
    constexpr int P = Pack<T>::N;
    static_assert(N % P == 0, "whole packs");
    if (wide) {
#pragma unroll
        for (int p = 0; p < N; p += P) {
            Pack<T> pack;
#pragma unroll
            for (int i = 0; i < P; i++) pack.v[i] = from_float<T>(in[p + i]);
            store_pack(to + p, pack);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < count) to[i] = from_float<T>(in[i]);
    }
}

// Whether a row of `cols` elements at `at` may be walked in packs throughout, row after row.
template <typename T> __device__ __forceinline__ bool packable(const T* at, u64 cols) {
    return (reinterpret_cast<u64>(at) & 15) == 0 && cols % Pack<T>::N == 0;
}

// Reductions: butterflies inside a warp, then the warps in their order. Every thread gets the result.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int lane = WARP / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(FULL_MASK, x, lane);
    return x;
}

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
    for (int lane = WARP / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(FULL_MASK, x, lane);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int lane = WARP / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_MASK, x, lane));
    return x;
}

// For one-dimensional blocks of whole warps. All threads of the block must call.
template <typename A> __device__ __forceinline__ A block_sum(A x) {
    __shared__ A partial[WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    x = warp_sum(x);
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    x = warp_sum(lane < warps ? partial[lane] : A(0));
    __syncthreads();
    return x;
}

__device__ __forceinline__ float block_max(float x) {
    __shared__ float partial[WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    x = warp_max(x);
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    x = warp_max(lane < warps ? partial[lane] : __int_as_float(0xff800000));
    __syncthreads();
    return x;
}

// Which elements dropout keeps: a hash of (key, site, row id, column) and nothing else, the same one
// on every backend: one word for two neighbours, 16 bits for each. `threshold` and `scale` follow from p
// and are computed on the host.
__device__ __forceinline__ u32 mix(u32 x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

struct RowMask {
    u32 a, b, threshold;
    float scale;

    // What an element is multiplied by: zero, or the scale.
    __device__ __forceinline__ float factor(u32 column) const {
        u32 word = column / 2 + a;
        word ^= word >> 16;
        word *= 0x7feb352du;
        word ^= b;
        word ^= word >> 15;
        word *= 0x846ca68bu;
        word ^= word >> 16;
        return (column % 2 ? word >> 16 : word & 0xffff) >= threshold ? scale : 0.0f;
    }
};

struct Mask {
    u32 k0, k1, site, threshold;
    float scale;

    __device__ __forceinline__ Mask(const u32* key, u32 site, u32 threshold, float scale)
        : k0(key[0] ^ mix(key[2] ^ 0x51ed270bu)), k1(key[1] ^ mix(key[3] + mix(key[2]))), site(site),
          threshold(threshold), scale(scale) {}

    __device__ __forceinline__ RowMask row(u32 row_id) const {
        RowMask mask;
        mask.a = mix(mix(mix(k0 ^ 0x9e3779b9u) + site) ^ row_id);
        mask.b = mix(mix(mix(k1 ^ 0x85ebca6bu) ^ row_id) + site);
        mask.threshold = threshold;
        mask.scale = scale;
        return mask;
    }
};
