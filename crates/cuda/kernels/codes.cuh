// What codes of few bits stand for, as multiples of their scale. Numbers and roundings are the host's, bit for bit.
#pragma once

#include "plimsoll.cuh"

// A sign, four bits of exponent and three of fraction: the bits of a float too small by 2¹²⁰, subnormal ones as well. The
// last number of the exponent is none.
__device__ __forceinline__ float e4m3_number(u32 code) {
    const float small = __uint_as_float((code & 0x80u) << 24 | (code & 0x7fu) << 20);
    return (code & 0x7fu) == 0x7fu ? __int_as_float(0x7fffffff) : small * 0x1p120f;
}

// Of two codes, the first one's in the low byte; bits above do not matter.
__device__ __forceinline__ float2 e4m3_numbers(u32 codes) {
#if __CUDA_ARCH__ >= 890
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(codes)));
    return __half22float2(*reinterpret_cast<const __half2*>(&halves));
#else
    return make_float2(e4m3_number(codes & 255u), e4m3_number(codes >> 8 & 255u));
#endif
}

// In 127ths: the quotient as division rounds it, by one step of Newton's from the product with the reciprocal.
__device__ __forceinline__ float int8_number(u32 code) {
    const float x = float(static_cast<signed char>(code)), reciprocal = 1.0f / 127.0f;
    const float near = __fmul_rn(x, reciprocal);
    return __fmaf_rn(__fmaf_rn(-near, 127.0f, x), reciprocal, near);
}

// The same of byte `i` of a word: the byte becomes the fraction of a float, which is a whole number and 128 too large; and
// for these the product with the reciprocal in two parts is as exact.
__device__ __forceinline__ float int8_number_of(u32 word, int i) {
    const u32 whole = __byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7440 | i);
    const float x = __uint_as_float(whole) - (0x1p23f + 128.0f);
    return __fmaf_rn(x, 1.0f / 127.0f, __fmul_rn(x, float(1.0 / 127.0 - 1.0f / 127.0f)));
}

#define NF4_CODES 16

__device__ constexpr float NF4_NUMBERS[NF4_CODES] = {
    -1.0f,        -0.6961928f,  -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f, -0.091050036f, 0.0f,
    0.0795803f,   0.1609302f,   0.2461123f,   0.33791524f, 0.44070983f,  0.562617f,    0.72295684f,   1.0f,
};

// Of the nearest number of e4m3, of two the even one; beyond the largest that, and what is no number stays none.
__device__ __forceinline__ u32 e4m3_code(float number) {
    const u32 sign = __float_as_uint(number) >> 24 & 0x80u;
    if (isnan(number)) return sign | 0x7fu;
    const float size = fminf(fabsf(number), 448.0f);
    const int exponent = max(int(__float_as_uint(size) >> 23) - 127, -6);
    // A whole number of steps, exactly; up to the next power, whose code is the next.
    const u32 steps = __float2uint_rn(size * __uint_as_float(u32(127 + 3 - exponent) << 23));
    return sign | (u32(exponent + 6) * 8 + steps);
}

// Of two numbers, the first one's in the low byte.
__device__ __forceinline__ u32 e4m3_codes(float first, float second) {
#if __CUDA_ARCH__ >= 890
    unsigned short codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
    return codes;
#else
    return e4m3_code(first) | e4m3_code(second) << 8;
#endif
}
