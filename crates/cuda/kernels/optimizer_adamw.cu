// Adam with decoupled weight decay.
#include "optimizer.cuh"

// The square root to about a unit in the last place.
__device__ __forceinline__ float root(float x) {
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What all elements of an AdamW update share.
struct AdamW {
    float factor, keep, step_size, root_correction, beta1_complement, beta2, beta2_complement, eps;

    __device__ __forceinline__ AdamW(const float* hyper, const float* clip, float beta1_complement, float beta2,
                                     float beta2_complement, float eps, float weight_decay)
        : factor(clip[1]), keep(fmaf(-hyper[0], weight_decay, 1.0f)), step_size(hyper[0] / hyper[1]),
          root_correction(1.0f / sqrtf(hyper[2])), beta1_complement(beta1_complement), beta2(beta2),
          beta2_complement(beta2_complement), eps(eps) {}

    // The N elements at `at`, or as many as there are if not `wide`. Every load is under way before the first is used.
    template <int N, bool WIDE, typename P, typename G, typename S>
    __device__ __forceinline__ void step(P* p, G* g, S* m, S* v, float* master, u64 at, u64 len,
                                         const Draws& draws) const {
        constexpr bool wide = WIDE;
        const int count = wide ? N : int(len - at);
        float parameter[N], gradient[N], first[N], second[N];
        load_some(g + at, count, wide, gradient);
        load_some(m + at, count, wide, first);
        load_some(v + at, count, wide, second);
        if (master != nullptr) load_some(master + at, count, wide, parameter);
        else load_some(p + at, count, wide, parameter);

        u32 draw[N], draw_first[N], draw_second[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            // Rounded by name: a compiler that fused it here and not there would make kernels differ.
            const float grad = __fmul_rn(gradient[i], factor);
            gradient[i] = 0.0f;
            first[i] = fmaf(grad - first[i], beta1_complement, first[i]);
            second[i] = fmaf(second[i], beta2, beta2_complement * grad * grad);
            const float denominator = fmaf(root(second[i]), root_correction, eps);
            parameter[i] = fmaf(-step_size, __fdividef(first[i], denominator), parameter[i] * keep);
            // Sixteen bits are enough for each: the high ones, the low ones, and the middle of a product of both.
            draw[i] = draws.draw(at + i, grad);
            draw_first[i] = draw[i] << 16;
            draw_second[i] = draw[i] * 0x846ca68bu << 8;
        }
        store_parameter(p + at, master != nullptr ? master + at : nullptr, count, wide, parameter, draw);
        store_some(g + at, count, wide, gradient);
        store_stochastic(m + at, count, wide, first, draw_first);
        store_stochastic(v + at, count, wide, second, draw_second);
    }
};

#define NUMBERS_adamw                                                                                                  \
    const float *hyper, const float *clip, float beta1_complement, float beta2, float beta2_complement, float eps,     \
        float weight_decay
#define RULE_adamw AdamW(hyper, clip, beta1_complement, beta2, beta2_complement, eps, weight_decay)

UPDATE_TYPES(adamw)
