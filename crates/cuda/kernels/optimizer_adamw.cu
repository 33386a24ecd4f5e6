// Adam with decoupled weight decay.
#include "optimizer.cuh"

// The square root to about a unit in the last place, times 2¹². Numbers too small to have all of their digits have them
// times 2²⁴; where this is done to all, nothing has to be asked. Beyond 2¹⁰⁴ there is no root, as beyond 2¹²⁸ there is no
// number: such an element stands still.
#define ROOT_FACTOR 4096.0f

__device__ __forceinline__ float scaled_root(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * (ROOT_FACTOR * ROOT_FACTOR)));
    return y;
}

// To about a unit in the last place, of a number that has all of its digits.
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What all elements of an AdamW update share.
struct AdamW {
    float factor, keep, step_size, root_correction, beta1_complement, beta2, beta2_complement, eps;

    __device__ __forceinline__ AdamW(const float* hyper, const float* clip, float beta1_complement, float beta2,
                                     float beta2_complement, float eps, float weight_decay)
        : factor(clip[1]), keep(fmaf(-hyper[0], weight_decay, 1.0f)), step_size(hyper[0] / hyper[1]),
          root_correction(1.0f / sqrtf(hyper[2]) / ROOT_FACTOR), beta1_complement(beta1_complement), beta2(beta2),
          beta2_complement(beta2_complement), eps(eps > 0.0f ? fmaxf(eps, SMALLEST_WHOLE) : eps) {}

    static constexpr int STATES = 2;
    static constexpr bool MOVES = true;

    __device__ __forceinline__ void apply(float& parameter, float& gradient, float& first, float& second) const {
        // Rounded by name: a compiler that fused it here and not there would make kernels differ.
        const float grad = __fmul_rn(gradient, factor);
        gradient = grad;
        first = fmaf(grad - first, beta1_complement, first);
        second = fmaf(second, beta2, beta2_complement * grad * grad);
        const float denominator = fmaf(scaled_root(second), root_correction, eps);
        parameter = fmaf(-step_size, __fmul_rn(first, reciprocal(denominator)), parameter * keep);
    }
};

#define NUMBERS_adamw                                                                                                  \
    const float *hyper, const float *clip, float beta1_complement, float beta2, float beta2_complement, float eps,     \
        float weight_decay
#define RULE_adamw AdamW(hyper, clip, beta1_complement, beta2, beta2_complement, eps, weight_decay)

UPDATE_TYPES(adamw)
