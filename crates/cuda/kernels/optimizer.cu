// Once per update: the global norm, the clip factor, the step. Gradients are left zeroed. Optional
// operands are null where they are absent.
#include "plimsoll.cuh"

#define NORM_THREADS 512
#define FACTOR_THREADS 1024
#define UPDATE_THREADS 256
// Elements of a tensor that one block of an update has.
#define UPDATE_CHUNK 16384

// Tensors of one launch, passed by value. All parameters of a kernel together have 4 KiB under every driver.
template <typename Row, int N> struct Table {
    Row rows[N];
};

struct NormRow {
    const void* gradient;
    u64 len;
    // The first block of the grid that belongs to a later row.
    u32 end;
    // Elements that a block sums.
    u32 part_len;
};

struct UpdateRow {
    void *p, *g, *m, *v;
    float* master;
    u64 len;
    u32 site;
    u32 end;
};

using NormTable = Table<NormRow, 168>;
using UpdateTable = Table<UpdateRow, 72>;
// The host writes rows word by word.
static_assert(sizeof(NormRow) == 3 * 8 && sizeof(UpdateRow) == 7 * 8, "rows without gaps");

// The row that this block works on, and which of the row's blocks it is.
template <typename T> __device__ __forceinline__ u32 find_row(const T& table, u32 count, u32& block) {
    u32 low = 0, high = count - 1;
    while (low < high) {
        const u32 middle = (low + high) / 2;
        if (blockIdx.x < table.rows[middle].end) high = middle;
        else low = middle + 1;
    }
    block = blockIdx.x - (low == 0 ? 0 : table.rows[low - 1].end);
    return low;
}

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
    const NormRow& row = table.rows[find_row(table, count, block)];
    const G* gradient = static_cast<const G*>(row.gradient);
    const u64 start = u64(block) * row.part_len, end = min(start + row.part_len, row.len);
    u64 at = start + threadIdx.x * N;
    float v[N];
    double sum = 0.0;
#pragma unroll 4
    for (; at + N <= end; at += NORM_THREADS * N) {
        load_floats(gradient + at, v);
        sum += double(squares_of(v));
    }
    if (at < end) {
        load_some(gradient + at, int(end - at), false, v);
        sum += double(squares_of(v));
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// `clip = [norm, factor]` from all parts of all gradients, by one block. An infinite `max_norm` never clips. Where the
// norm is not finite the factor is no number, and the update leaves everything as it is.
PLIMSOLL_EXPORT __launch_bounds__(FACTOR_THREADS)
    clip_factor(const double* partial, float* clip, u32 parts, float max_norm) {
    double sum = 0.0;
#pragma unroll 4
    for (u32 part = threadIdx.x; part < parts; part += blockDim.x) sum += partial[part];
    sum = block_sum(sum);
    if (threadIdx.x != 0) return;
    const float norm = float(sqrt(sum));
    clip[0] = norm;
    clip[1] = isfinite(norm) ? fminf(1.0f, max_norm / (norm + 1e-6f)) : __int_as_float(0x7fffffff);
}

// Rounding to one of the two neighbours, the nearer one the more often: on average nothing is lost,
// however small a step is beside the number it is added to.
template <typename T> __device__ __forceinline__ T round_stochastic(float x, u32 draw);

template <> __device__ __forceinline__ float round_stochastic<float>(float x, u32) { return x; }

template <> __device__ __forceinline__ bf16 round_stochastic<bf16>(float x, u32 draw) {
    const u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) >= 0x7f800000u) return from_float<bf16>(x);
    return __ushort_as_bfloat16((unsigned short)((bits + (draw >> 16)) >> 16));
}

template <> __device__ __forceinline__ f16 round_stochastic<f16>(float x, u32 draw) {
    const f16 inner = __float2half_rz(x);
    const f16 outer = __ushort_as_half((unsigned short)(__half_as_ushort(inner) + 1));
    const float base = __half2float(inner), chance = (x - base) / (__half2float(outer) - base);
    // Exact, infinite and undefined numbers stay as they are; beyond the largest one the chance is zero.
    return base != x && float(draw) * 2.3283064e-10f < chance ? outer : inner;
}

// Draws are a hash of the parameter, the update, the element and its gradient: the same ones wherever
// the parameter lies and however it is divided among threads.
struct Draws {
    u32 a;

    __device__ __forceinline__ Draws(u32 site, const float* hyper) {
        u32 update = mix(__float_as_uint(hyper[0]) ^ 0x9e3779b9u);
        for (int i = 1; i < 4; i++) update = mix(update + __float_as_uint(hyper[i]));
        a = mix(update ^ mix(site + 0x85ebca6bu));
    }

    __device__ __forceinline__ u32 draw(u64 element, float gradient) const {
        return mix((u32(element) * 0x9e3779b1u + a) ^ u32(element >> 32) * 0x85ebca6bu ^ __float_as_uint(gradient));
    }
};

// Up to N elements; all of them, in wide accesses, if `wide`.
template <typename T, int N>
__device__ __forceinline__ void store_stochastic(T* to, int count, bool wide, const float (&in)[N],
                                                const u32 (&draws)[N]) {
    constexpr int P = Pack<T>::N;
    if (wide) {
#pragma unroll
        for (int from = 0; from < N; from += P) {
            Pack<T> pack;
#pragma unroll
            for (int i = 0; i < P; i++) pack.v[i] = round_stochastic<T>(in[from + i], draws[from + i]);
            store_pack(to + from, pack);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i < count) to[i] = round_stochastic<T>(in[i], draws[i]);
        }
    }
}

// A parameter after its step: with a master, the master and its nearest neighbour; else stochastically.
template <typename P, int N>
__device__ __forceinline__ void store_parameter(P* p, float* master, int count, bool wide, const float (&value)[N],
                                                const u32 (&draws)[N]) {
    if (master == nullptr) return store_stochastic(p, count, wide, value, draws);
    store_some(master, count, wide, value);
    store_some(p, count, wide, value);
}

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

// The same for SGD, whose one state, the momentum, stands in for `m`.
struct Sgd {
    float factor, lr, momentum_factor, weight_decay;

    __device__ __forceinline__ Sgd(const float* hyper, const float* clip, float momentum_factor, float weight_decay)
        : factor(clip[1]), lr(hyper[0]), momentum_factor(momentum_factor), weight_decay(weight_decay) {}

    template <int N, bool WIDE, typename P, typename G, typename S>
    __device__ __forceinline__ void step(P* p, G* g, S* momentum, S*, float* master, u64 at, u64 len,
                                         const Draws& draws) const {
        constexpr bool wide = WIDE;
        const int count = wide ? N : int(len - at);
        float parameter[N], gradient[N], velocity[N];
        if (master != nullptr) load_some(master + at, count, wide, parameter);
        else load_some(p + at, count, wide, parameter);
        load_some(g + at, count, wide, gradient);
        if (momentum != nullptr) load_some(momentum + at, count, wide, velocity);

        u32 draw[N], draw_velocity[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float grad = fmaf(parameter[i], weight_decay, __fmul_rn(gradient[i], factor));
            draw[i] = draws.draw(at + i, grad);
            draw_velocity[i] = draw[i] << 16;
            gradient[i] = 0.0f;
            velocity[i] = momentum != nullptr ? fmaf(velocity[i], momentum_factor, grad) : grad;
            parameter[i] = fmaf(-lr, velocity[i], parameter[i]);
        }
        store_parameter(p + at, master != nullptr ? master + at : nullptr, count, wide, parameter, draw);
        store_some(g + at, count, wide, gradient);
        if (momentum != nullptr) store_stochastic(momentum + at, count, wide, velocity, draw_velocity);
    }
};

// One chunk of a tensor. A thread has as many elements at a time as the narrowest type has in its widest access.
template <typename P, typename G, typename S, typename Rule>
__device__ __forceinline__ void update_chunk(const Rule& rule, P* p, G* g, S* m, S* v, float* master, u32 chunk,
                                             u64 len, const Draws& draws) {
    constexpr int N = sizeof(P) == 2 || sizeof(G) == 2 || sizeof(S) == 2 ? 8 : 4;
    static_assert(UPDATE_CHUNK % (UPDATE_THREADS * N) == 0, "threads have equal shares");
    const u64 start = u64(chunk) * UPDATE_CHUNK, end = min(start + UPDATE_CHUNK, len);
    if (isnan(rule.factor)) {
        for (u64 at = start + threadIdx.x; at < end; at += UPDATE_THREADS) g[at] = from_float<G>(0.0f);
        return;
    }
#pragma unroll 1
    for (u64 at = start + threadIdx.x * N; at < end; at += UPDATE_THREADS * N) {
        if (at + N <= len) rule.template step<N, true>(p, g, m, v, master, at, len, draws);
        else rule.template step<N, false>(p, g, m, v, master, at, len, draws);
    }
}

// One tensor, by a grid of its own.
template <typename P, typename G, typename S, typename Rule>
__device__ __forceinline__ void update_one(const Rule& rule, P* p, G* g, S* m, S* v, float* master,
                                           const float* hyper, u64 len, u32 site) {
    update_chunk(rule, p, g, m, v, master, blockIdx.x, len, Draws(site, hyper));
}

// Many tensors, each by as many blocks as it has chunks.
template <typename P, typename G, typename S, typename Rule>
__device__ __forceinline__ void update_many(const Rule& rule, const UpdateTable& table, u32 count,
                                            const float* hyper) {
    u32 chunk;
    const UpdateRow& row = table.rows[find_row(table, count, chunk)];
    update_chunk(rule, static_cast<P*>(row.p), static_cast<G*>(row.g), static_cast<S*>(row.m), static_cast<S*>(row.v),
                 row.master, chunk, row.len, Draws(row.site, hyper));
}

// The first of a kernel's parameters, read where the driver put it.
#define TABLE(type) const __grid_constant__ type table, u32 count

#define NORM_KERNELS(suffix, G)                                                                                        \
    PLIMSOLL_EXPORT __launch_bounds__(NORM_THREADS) square_sums_##suffix(TABLE(NormTable), double* partial) {          \
        square_sums<G>(table, count, partial);                                                                         \
    }

PLIMSOLL_FOR_EACH_TYPE(NORM_KERNELS)

#define ADAMW_NUMBERS                                                                                                  \
    const float *hyper, const float *clip, float beta1_complement, float beta2, float beta2_complement, float eps,     \
        float weight_decay
#define ADAMW_RULE AdamW(hyper, clip, beta1_complement, beta2, beta2_complement, eps, weight_decay)
#define SGD_NUMBERS const float *hyper, const float *clip, float momentum_factor, float weight_decay
#define SGD_RULE Sgd(hyper, clip, momentum_factor, weight_decay)

// Named after parameter, gradient and state.
#define UPDATE_KERNELS(p_name, P, g_name, G, s_name, S)                                                                \
    PLIMSOLL_EXPORT __launch_bounds__(UPDATE_THREADS) adamw_##p_name##_##g_name##_##s_name(                            \
        P* p, G* g, S* m, S* v, float* master, u64 len, u32 site, ADAMW_NUMBERS) {                                     \
        update_one<P, G, S>(ADAMW_RULE, p, g, m, v, master, hyper, len, site);                                         \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(UPDATE_THREADS)                                                                  \
        adamw_many_##p_name##_##g_name##_##s_name(TABLE(UpdateTable), ADAMW_NUMBERS) {                                 \
        update_many<P, G, S>(ADAMW_RULE, table, count, hyper);                                                         \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(UPDATE_THREADS) sgd_##p_name##_##g_name##_##s_name(                              \
        P* p, G* g, S* m, S* v, float* master, u64 len, u32 site, SGD_NUMBERS) {                                       \
        update_one<P, G, S>(SGD_RULE, p, g, m, v, master, hyper, len, site);                                           \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(UPDATE_THREADS)                                                                  \
        sgd_many_##p_name##_##g_name##_##s_name(TABLE(UpdateTable), SGD_NUMBERS) {                                     \
        update_many<P, G, S>(SGD_RULE, table, count, hyper);                                                           \
    }

#define STATE_KERNELS(p_name, P, g_name, G)                                                                            \
    UPDATE_KERNELS(p_name, P, g_name, G, f32, float)                                                                   \
    UPDATE_KERNELS(p_name, P, g_name, G, bf16, bf16)

STATE_KERNELS(f32, float, f32, float)
STATE_KERNELS(bf16, bf16, f32, float)
STATE_KERNELS(bf16, bf16, bf16, bf16)
STATE_KERNELS(f16, f16, f32, float)
STATE_KERNELS(f16, f16, f16, f16)
