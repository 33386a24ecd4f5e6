// Numbers drawn from a key and their index, bit for bit as the host draws them: every operation rounds by itself,
// none is fused, and no library function is used.
#include "plimsoll.cuh"

enum : u32 { CONSTANT = 0, UNIFORM = 1, NORMAL = 2 };

#define GOLDEN 0x9e3779b97f4a7c15ull

__device__ __forceinline__ u64 mix64(u64 x) {
    x += GOLDEN;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// A multiple of 2^-23 in [-1, 1) from the upper 24 bits.
__device__ __forceinline__ float signed_unit(u32 bits) {
    return __fmul_rn(__int2float_rn(i32(bits) >> 8), 1.0f / 8388608.0f);
}

// The mantissa's logarithm by the series of the inverse hyperbolic tangent, and the exponent's.
__device__ __forceinline__ float exact_ln(float x) {
    const u32 bits = __float_as_uint(x);
    const i32 exponent = i32(bits - 0x3f3504f3u) >> 23;
    const float mantissa = __uint_as_float(bits - (u32(exponent) << 23));
    const float s = __fdiv_rn(__fadd_rn(mantissa, -1.0f), __fadd_rn(mantissa, 1.0f));
    const float square = __fmul_rn(s, s);
    float series = __fmul_rn(square, 0.11111111f);
    series = __fmul_rn(__fadd_rn(series, 0.14285715f), square);
    series = __fmul_rn(__fadd_rn(series, 0.2f), square);
    series = __fmul_rn(__fadd_rn(series, 0.33333334f), square);
    const float twice = __fadd_rn(s, s);
    return __fadd_rn(__fmul_rn(__int2float_rn(exponent), 0.693147180559945309f),
                     __fadd_rn(twice, __fmul_rn(twice, series)));
}

// sin(x·π/2).
__device__ __forceinline__ float quarter_sine(float x) {
    const float square = __fmul_rn(x, x);
    float series = -3.5988432e-6f;
    series = __fadd_rn(__fmul_rn(series, square), 1.6044118e-4f);
    series = __fadd_rn(__fmul_rn(series, square), -4.681754e-3f);
    series = __fadd_rn(__fmul_rn(series, square), 7.9692626e-2f);
    series = __fadd_rn(__fmul_rn(series, square), -0.6459641f);
    series = __fadd_rn(__fmul_rn(series, square), 1.5707964f);
    return __fmul_rn(x, series);
}

__device__ __forceinline__ float drawn(u32 kind, float scale, u64 key, u64 index) {
    if (kind == CONSTANT) return scale;
    const u64 bits = mix64(key + index * GOLDEN);
    const float part = signed_unit(u32(bits));
    if (kind == UNIFORM) return __fmul_rn(scale, part);
    const float u = __fmul_rn(__uint2float_rn(u32(bits >> 40) + 1u), 1.0f / 16777216.0f);
    const float radius = __fsqrt_rn(__fmul_rn(-2.0f, exact_ln(u)));
    return __fmul_rn(scale, __fmul_rn(radius, quarter_sine(part)));
}

template <typename T> __device__ __forceinline__ void draw(T* out, u64 len, u32 kind, float scale, u64 key) {
    constexpr int N = Pack<T>::N;
    const u64 at = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    if (at >= len) return;
    const int count = int(min(u64(N), len - at));
    float v[N];
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = drawn(kind, scale, key, at + i);
    store_some(out + at, count, count == N, v);
}

#define KERNELS(suffix, T)                                                                                             \
    PLIMSOLL_EXPORT __launch_bounds__(256) draw_##suffix(T* out, u64 len, u32 kind, float scale, u64 key) {            \
        wait_for_previous_kernel();                                                                                    \
        draw<T>(out, len, kind, scale, key);                                                                           \
    }

PLIMSOLL_FOR_EACH_TYPE(KERNELS)
