// The nonlinearities: a curve gives its value, and its value and slope.
#pragma once

#include "plimsoll.cuh"

// 1 / (1 + e⁻ˣ) and 1 / (1 + eˣ): each keeps its relative precision, and nothing overflows.
__device__ __forceinline__ float2 sigmoids(float x) {
    const float decay = expf(-fabsf(x)), larger = __fdividef(1.0f, 1.0f + decay), smaller = decay * larger;
    return x >= 0.0f ? make_float2(larger, smaller) : make_float2(smaller, larger);
}

struct silu {
    static __device__ __forceinline__ float value(float x) { return x * sigmoids(x).x; }
    static __device__ __forceinline__ float2 both(float x) {
        const float2 s = sigmoids(x);
        const float value = x * s.x;
        return make_float2(value, fmaf(value, s.y, s.x));
    }
};

// With the error function.
struct gelu {
    static __device__ __forceinline__ float chance(float x) {
        return 0.5f * erfcf(-0.70710678f * x);
    }
    static __device__ __forceinline__ float value(float x) { return x * chance(x); }
    static __device__ __forceinline__ float2 both(float x) {
        const float c = chance(x), density = 0.39894228f * expf(-0.5f * x * x);
        return make_float2(x * c, fmaf(x, density, c));
    }
};

// The tanh approximation, by (1 + tanh(u)) / 2 = sigmoid(2u).
struct gelu_tanh {
    static constexpr float SLOPE = 2.0f * 0.79788456f;
    static constexpr float CUBIC = 0.044715f;

    static __device__ __forceinline__ float2 inner(float x) {
        const float square = x * x;
        return sigmoids(SLOPE * x * fmaf(square, CUBIC, 1.0f));
    }
    static __device__ __forceinline__ float value(float x) { return x * inner(x).x; }
    static __device__ __forceinline__ float2 both(float x) {
        const float2 s = inner(x);
        const float value = x * s.x, inner_slope = SLOPE * fmaf(x * x, 3.0f * CUBIC, 1.0f);
        return make_float2(value, fmaf(value * s.y, inner_slope, s.x));
    }
};

struct relu {
    static __device__ __forceinline__ float value(float x) { return x > 0.0f ? x : 0.0f; }
    static __device__ __forceinline__ float2 both(float x) {
        return x > 0.0f ? make_float2(x, 1.0f) : make_float2(0.0f, 0.0f);
    }
};

struct relu2 {
    static __device__ __forceinline__ float value(float x) {
        const float positive = relu::value(x);
        return positive * positive;
    }
    static __device__ __forceinline__ float2 both(float x) {
        const float positive = relu::value(x);
        return make_float2(positive * positive, 2.0f * positive);
    }
};
