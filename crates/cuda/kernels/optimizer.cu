// Once per update: the global norm, the clip factor, the step. Gradients are left zeroed. Optional
// operands are null where they are absent.
#include "plimsoll.cuh"

#define NORM_THREADS 256
#define FACTOR_THREADS 1024
#define UPDATE_THREADS 256
// Elements that a thread of an update has: the widest access of a 16-bit type, two of a float.
#define ELEMENTS 8

// One part of a gradient's sum of squares per block. The few squares of a pack are added as floats,
// packs in double precision.
template <typename G> __device__ __forceinline__ void square_sums(const G* gradient, double* partial, u64 len) {
    constexpr int N = Pack<G>::N;
    const u64 stride = u64(gridDim.x) * blockDim.x * N;
    double sum = 0.0;
    for (u64 at = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * N; at < len; at += stride) {
        const int count = int(min(u64(N), len - at));
        float v[N], squares = 0.0f;
        load_some(gradient + at, count, count == N, v);
#pragma unroll
        for (int i = 0; i < N; i++) squares = fmaf(v[i], v[i], squares);
        sum += double(squares);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// `clip = [norm, factor]` from all parts of all gradients, by one block. An infinite `max_norm` never clips.
PLIMSOLL_EXPORT __launch_bounds__(FACTOR_THREADS)
    clip_factor(const double* partial, float* clip, u32 parts, float max_norm) {
    double sum = 0.0;
    for (u32 part = threadIdx.x; part < parts; part += blockDim.x) sum += partial[part];
    sum = block_sum(sum);
    if (threadIdx.x != 0) return;
    const float norm = float(sqrt(sum));
    clip[0] = norm;
    clip[1] = fminf(1.0f, max_norm / (norm + 1e-6f));
}

// Rounding to one of the two neighbours, the nearer one the more often: on average nothing is lost,
// however small a step is beside the number it is added to.
template <typename T> __device__ __forceinline__ T round_by_chance(float x, u32 draw);

template <> __device__ __forceinline__ float round_by_chance<float>(float x, u32) { return x; }

template <> __device__ __forceinline__ bf16 round_by_chance<bf16>(float x, u32 draw) {
    const u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) >= 0x7f800000u) return from_float<bf16>(x);
    return __ushort_as_bfloat16((unsigned short)((bits + (draw >> 16)) >> 16));
}

template <> __device__ __forceinline__ f16 round_by_chance<f16>(float x, u32 draw) {
    const f16 inner = __float2half_rz(x);
    const f16 outer = __ushort_as_half((unsigned short)(__half_as_ushort(inner) + 1));
    const float base = __half2float(inner), chance = (x - base) / (__half2float(outer) - base);
    // Exact, infinite and undefined numbers stay as they are; beyond the largest one the chance is zero.
    return base != x && float(draw) * 2.3283064e-10f < chance ? outer : inner;
}

// Draws are a hash of the parameter, the update, the element and its gradient: the same ones wherever
// the parameter lies and however it is divided among threads.
struct Draws {
    u32 a, b;

    __device__ __forceinline__ Draws(u32 site, const float* hyper) {
        u32 update = mix(__float_as_uint(hyper[0]) ^ 0x9e3779b9u);
        for (int i = 1; i < 4; i++) update = mix(update + __float_as_uint(hyper[i]));
        a = mix(update ^ mix(site + 0x85ebca6bu));
        b = mix(a + 0x51ed270bu);
    }

    __device__ __forceinline__ u32 draw(u64 element, float gradient) const {
        return mix(mix((u32(element) + a) ^ u32(element >> 32)) ^ __float_as_uint(gradient) ^ b);
    }
};

template <typename T>
__device__ __forceinline__ void store_by_chance(T* to, int count, const float (&in)[ELEMENTS],
                                                const u32 (&draws)[ELEMENTS]) {
    float rounded[ELEMENTS];
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) rounded[i] = to_float(round_by_chance<T>(in[i], draws[i]));
    store_some(to, count, count == ELEMENTS, rounded);
}

// A parameter after its step: with a master, the master and its nearest neighbour; else by chance.
template <typename P>
__device__ __forceinline__ void store_parameter(P* p, float* master, int count, const float (&value)[ELEMENTS],
                                                const u32 (&draws)[ELEMENTS]) {
    if (master == nullptr) return store_by_chance(p, count, value, draws);
    store_some(master, count, count == ELEMENTS, value);
    store_some(p, count, count == ELEMENTS, value);
}

template <typename P, typename G, typename S>
__device__ __forceinline__ void adamw(P* p, G* g, S* m, S* v, float* master, const float* hyper, const float* clip,
                                      u64 len, u32 site, float beta1_complement, float beta2, float beta2_complement,
                                      float eps, float weight_decay) {
    const u64 at = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * ELEMENTS;
    if (at >= len) return;
    const int count = int(min(u64(ELEMENTS), len - at));
    const bool wide = count == ELEMENTS;
    float parameter[ELEMENTS], gradient[ELEMENTS], first[ELEMENTS], second[ELEMENTS];
    if (master != nullptr) load_some(master + at, count, wide, parameter);
    else load_some(p + at, count, wide, parameter);
    load_some(g + at, count, wide, gradient);
    load_some(m + at, count, wide, first);
    load_some(v + at, count, wide, second);

    const float lr = hyper[0], factor = clip[1];
    const float keep = fmaf(-lr, weight_decay, 1.0f), step_size = lr / hyper[1];
    const float root_correction = 1.0f / sqrtf(hyper[2]);
    const Draws draws(site, hyper);
    u32 draw[ELEMENTS], draw_first[ELEMENTS], draw_second[ELEMENTS];
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) {
        const float grad = gradient[i] * factor;
        gradient[i] = 0.0f;
        first[i] = fmaf(grad - first[i], beta1_complement, first[i]);
        second[i] = fmaf(second[i], beta2, beta2_complement * grad * grad);
        const float denominator = fmaf(sqrtf(second[i]), root_correction, eps);
        parameter[i] = fmaf(-step_size, first[i] / denominator, parameter[i] * keep);
        // Sixteen bits are enough for a moment.
        draw[i] = draws.draw(at + i, grad);
        draw_first[i] = draw[i] << 16;
        draw_second[i] = mix(draw[i] + 0x9e3779b9u);
    }
    store_parameter(p + at, master != nullptr ? master + at : nullptr, count, parameter, draw);
    store_some(g + at, count, wide, gradient);
    store_by_chance(m + at, count, first, draw_first);
    store_by_chance(v + at, count, second, draw_second);
}

template <typename P, typename G, typename S>
__device__ __forceinline__ void sgd(P* p, G* g, S* momentum, float* master, const float* hyper, const float* clip,
                                    u64 len, u32 site, float momentum_factor, float weight_decay) {
    const u64 at = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * ELEMENTS;
    if (at >= len) return;
    const int count = int(min(u64(ELEMENTS), len - at));
    const bool wide = count == ELEMENTS;
    float parameter[ELEMENTS], gradient[ELEMENTS], velocity[ELEMENTS];
    if (master != nullptr) load_some(master + at, count, wide, parameter);
    else load_some(p + at, count, wide, parameter);
    load_some(g + at, count, wide, gradient);
    if (momentum != nullptr) load_some(momentum + at, count, wide, velocity);

    const float lr = hyper[0], factor = clip[1];
    const Draws draws(site, hyper);
    u32 draw[ELEMENTS], draw_velocity[ELEMENTS];
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) {
        const float grad = fmaf(parameter[i], weight_decay, gradient[i] * factor);
        draw[i] = draws.draw(at + i, grad);
        draw_velocity[i] = draw[i] << 16;
        gradient[i] = 0.0f;
        velocity[i] = momentum != nullptr ? fmaf(velocity[i], momentum_factor, grad) : grad;
        parameter[i] = fmaf(-lr, velocity[i], parameter[i]);
    }
    store_parameter(p + at, master != nullptr ? master + at : nullptr, count, parameter, draw);
    store_some(g + at, count, wide, gradient);
    if (momentum != nullptr) store_by_chance(momentum + at, count, velocity, draw_velocity);
}

#define NORM_KERNELS(suffix, G)                                                                                        \
    PLIMSOLL_EXPORT __launch_bounds__(NORM_THREADS)                                                                    \
        square_sums_##suffix(const G* gradient, double* partial, u64 len) {                                            \
        square_sums<G>(gradient, partial, len);                                                                        \
    }

PLIMSOLL_FOR_EACH_TYPE(NORM_KERNELS)

// Named after parameter, gradient and state.
#define UPDATE_KERNELS(p_name, P, g_name, G, s_name, S)                                                                \
    PLIMSOLL_EXPORT __launch_bounds__(UPDATE_THREADS)                                                                  \
        adamw_##p_name##_##g_name##_##s_name(P* p, G* g, S* m, S* v, float* master, const float* hyper,                \
                                             const float* clip, u64 len, u32 site, float beta1_complement,             \
                                             float beta2, float beta2_complement, float eps, float weight_decay) {     \
        adamw<P, G, S>(p, g, m, v, master, hyper, clip, len, site, beta1_complement, beta2, beta2_complement, eps,     \
                       weight_decay);                                                                                  \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(UPDATE_THREADS)                                                                  \
        sgd_##p_name##_##g_name##_##s_name(P* p, G* g, S* momentum, float* master, const float* hyper,                 \
                                           const float* clip, u64 len, u32 site, float momentum_factor,                \
                                           float weight_decay) {                                                       \
        sgd<P, G, S>(p, g, momentum, master, hyper, clip, len, site, momentum_factor, weight_decay);                   \
    }

#define STATE_KERNELS(p_name, P, g_name, G)                                                                            \
    UPDATE_KERNELS(p_name, P, g_name, G, f32, float)                                                                   \
    UPDATE_KERNELS(p_name, P, g_name, G, bf16, bf16)

STATE_KERNELS(f32, float, f32, float)
STATE_KERNELS(bf16, bf16, f32, float)
STATE_KERNELS(bf16, bf16, bf16, bf16)
STATE_KERNELS(f16, f16, f32, float)
STATE_KERNELS(f16, f16, f16, f16)
