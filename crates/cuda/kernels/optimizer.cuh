// What the updates of all optimizers share: tables of tensors, stochastic rounding, the division into chunks. Optional
// operands are null where they are absent.
#pragma once
#include "coded_states.cuh"

#define UPDATE_THREADS 256
// Elements of a tensor that one block of an update has.
#define UPDATE_CHUNK 16384

// Tensors of one launch, passed by value. All parameters of a kernel together have 4 KiB under every driver.
template <typename Row, int N> struct Table {
    Row rows[N];
};

struct UpdateRow {
    void *p, *g, *m, *v;
    float* master;
    u64 len;
    u32 site;
    // The first block of the grid that belongs to a later row.
    u32 end;
};

using UpdateTable = Table<UpdateRow, 72>;
// The host writes rows word by word.
static_assert(sizeof(UpdateRow) == 7 * 8, "rows without gaps");

// The row that a block belongs to, and which of the row's blocks it is.
template <typename T> __device__ __forceinline__ u32 find_row(const T& table, u32 count, u32 block, u32& of_row) {
    u32 low = 0, high = count - 1;
    while (low < high) {
        const u32 middle = (low + high) / 2;
        if (block < table.rows[middle].end) high = middle;
        else low = middle + 1;
    }
    of_row = block - (low == 0 ? 0 : table.rows[low - 1].end);
    return low;
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

    // Those of N elements in a row, from a multiple of N on: all have the same high half.
    template <int N> __device__ __forceinline__ void draw(u64 from, const float (&gradient)[N], u32 (&out)[N]) const {
        const u32 low = u32(from) * 0x9e3779b1u + a, high = u32(from >> 32) * 0x85ebca6bu;
#pragma unroll
        for (u32 i = 0; i < N; i++) out[i] = mix((low + i * 0x9e3779b1u) ^ high ^ __float_as_uint(gradient[i]));
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

// Of finite numbers in bfloat16 two sums make a word. A product with zero is one, unless a number is not finite; that is
// asked once for all of them.
template <int N>
__device__ __forceinline__ void store_stochastic(bf16* to, int count, bool wide, const float (&in)[N],
                                                const u32 (&draws)[N]) {
    static_assert(N % 8 == 0, "whole packs");
    float spoilt = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) spoilt = fmaf(in[i], 0.0f, spoilt);
    if (wide && spoilt == 0.0f) {
        const auto sum = [&](int i) { return __float_as_uint(in[i]) + (draws[i] >> 16); };
        const auto pair = [&](int i) { return __byte_perm(sum(i), sum(i + 1), 0x7632); };
#pragma unroll
        for (int i = 0; i < N; i += 8) {
            *reinterpret_cast<uint4*>(to + i) = make_uint4(pair(i), pair(i + 2), pair(i + 4), pair(i + 6));
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (wide || i < count) to[i] = round_stochastic<bf16>(in[i], draws[i]);
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

// What an update does to a run of elements. `Rule::apply` takes them as loaded, in float32, and leaves behind what is to be
// stored; in place of the gradient, what draws are made of. A rule that does not move the parameter leaves it and the master
// as they are, and in the gradient's place what it made of it. States and master are read only where there are any.
template <typename Rule, typename P, typename G, int N> struct Elements {
    P* p;
    G* g;
    float* master;
    int count;
    bool wide;
    float parameter[N], gradient[N], first[N], second[N];
    u32 draw[N];

    __device__ __forceinline__ Elements(P* p, G* g, float* master, u64 at, int count, bool wide)
        : p(p + at), g(g + at), master(master != nullptr ? master + at : nullptr), count(count), wide(wide) {
        load_some(this->g, count, wide, gradient);
        if (!Rule::MOVES) return;
        if (master != nullptr) load_some(this->master, count, wide, parameter);
        else load_some(this->p, count, wide, parameter);
    }

    __device__ __forceinline__ void apply(const Rule& rule, u64 at, const Draws& draws) {
#pragma unroll
        for (int i = 0; i < N; i++) rule.apply(parameter[i], gradient[i], first[i], second[i]);
        draws.draw(at, gradient, draw);
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (Rule::MOVES) gradient[i] = 0.0f;
        }
        if (Rule::MOVES) store_parameter(p, master, count, wide, parameter, draw);
        store_some(g, count, wide, gradient);
    }
};

// The N elements at `at`, or as many as there are if not `WIDE`. Every load is under way before the first is used.
template <int N, bool WIDE, typename P, typename G, typename S, typename Rule>
__device__ __forceinline__ void update_elements(const Rule& rule, P* p, G* g, S* m, S* v, float* master, u64 at, u64 len,
                                                const Draws& draws) {
    constexpr bool wide = WIDE;
    const int count = wide ? N : int(len - at);
    Elements<Rule, P, G, N> elements(p, g, master, at, count, wide);
    if (m != nullptr) load_some(m + at, count, wide, elements.first);
    if (Rule::STATES > 1) load_some(v + at, count, wide, elements.second);
    elements.apply(rule, at, draws);
    // Sixteen bits are enough for each draw: the high ones, the low ones, and the middle of a product of both.
    u32 draw_first[N], draw_second[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        draw_first[i] = elements.draw[i] << 16;
        draw_second[i] = elements.draw[i] * 0x846ca68bu << 8;
    }
    if (m != nullptr) store_stochastic(m + at, count, wide, elements.first, draw_first);
    if (Rule::STATES > 1) store_stochastic(v + at, count, wide, elements.second, draw_second);
}

template <typename G> __device__ __forceinline__ void zero_gradient(G* g, u64 start, u64 end) {
    for (u64 at = start + threadIdx.x; at < end; at += UPDATE_THREADS) g[at] = from_float<G>(0.0f);
}

// One chunk of a tensor. A thread has as many elements at a time as the narrowest type has in its widest access.
template <typename P, typename G, typename S, typename Rule>
__device__ __forceinline__ void update_chunk(const Rule& rule, P* p, G* g, S* m, S* v, float* master, u32 chunk,
                                             u64 len, const Draws& draws) {
    constexpr int N = sizeof(P) == 2 || sizeof(G) == 2 || sizeof(S) == 2 ? 8 : 4;
    static_assert(UPDATE_CHUNK % (UPDATE_THREADS * N) == 0, "threads have equal shares");
    const u64 start = u64(chunk) * UPDATE_CHUNK, end = min(start + UPDATE_CHUNK, len);
    if (isnan(rule.factor)) return zero_gradient(g, start, end);
#pragma unroll 1
    for (u64 at = start + threadIdx.x * N; at < end; at += UPDATE_THREADS * N) {
        if (at + N <= len) update_elements<N, true>(rule, p, g, m, v, master, at, len, draws);
        else update_elements<N, false>(rule, p, g, m, v, master, at, len, draws);
    }
}

// The same where states are in codes: a warp has a block of these at a time, every lane eight elements of it. If `WHOLE`,
// all of them are there.
template <bool WHOLE, typename P, typename G, typename Rule, typename Tables>
__device__ __forceinline__ void update_coded(const Rule& rule, P* p, G* g, const CodedState& m, const CodedState& v,
                                             float* master, u64 block, u64 len, const Draws& draws, const Tables& tables) {
    const u64 at = block + threadIdx.x % WARP * INT8_LANE;
    const int count = WHOLE ? INT8_LANE : at < len ? int(min(len - at, u64(INT8_LANE))) : 0;
    const bool wide = WHOLE || count == INT8_LANE;
    // Every load is under way before the first is used.
    Elements<Rule, P, G, INT8_LANE> elements(p, g, master, at, count, wide);
    CodedLane first(m, block, at, count, wide), second;
    if (Rule::STATES > 1) second = CodedLane(v, block, at, count, wide);
    first.decode(tables.with_sign, elements.first);
    if (Rule::STATES > 1) second.decode(tables.without_sign, elements.second);
    elements.apply(rule, at, draws);
    first.template encode<true>(tables.signed_words, elements.first, count);
    if (Rule::STATES > 1) second.template encode<false>(tables.unsigned_words, elements.second, count);
    // Every lane has read the scales before one writes them.
    __syncwarp();
    first.store(m, block, at, count, wide);
    if (Rule::STATES > 1) second.store(v, block, at, count, wide);
}

// By all warps of a block: blocks of states from `start` to `end`, each warp's `step` apart. Only the tensor's last one may
// be a part of one.
template <typename P, typename G, typename Rule, typename Tables>
__device__ __forceinline__ void update_blocks(const Rule& rule, P* p, G* g, Int8* m, Int8* v, float* master, u64 start,
                                              u64 end, u64 step, u64 len, const Draws& draws, const Tables& tables) {
    const CodedState first(m, len), second(v, len);
    u64 block = start + threadIdx.x / WARP * INT8_BLOCK;
    if (isnan(rule.factor)) {
        for (; block < end; block += step) {
            for (u64 at = block + threadIdx.x % WARP; at < min(block + INT8_BLOCK, end); at += WARP) {
                g[at] = from_float<G>(0.0f);
            }
        }
        return;
    }
#pragma unroll 1
    for (; block + INT8_BLOCK <= end; block += step) {
        update_coded<true>(rule, p, g, first, second, master, block, len, draws, tables);
    }
    if (block < end) update_coded<false>(rule, p, g, first, second, master, block, len, draws, tables);
}

// One tensor, by a grid of its own. Where states are in codes, blocks are as many as the card holds at a time and go
// through the tensor together, so that each fills its tables once.
template <typename P, typename G, typename S, typename Rule>
__device__ __forceinline__ void update_one(const Rule& rule, P* p, G* g, S* m, S* v, float* master,
                                           const float* hyper, u64 len, u32 site) {
    const Draws draws(site, hyper);
    if constexpr (CODED<S>) {
        __shared__ DynamicTables<Rule::STATES> tables;
        tables.fill();
        const u64 stride = u64(CODED_THREADS) * INT8_LANE;
        update_blocks(rule, p, g, m, v, master, blockIdx.x * stride, len, gridDim.x * stride, len, draws, tables);
    } else {
        update_chunk(rule, p, g, m, v, master, blockIdx.x, len, draws);
    }
}

// Many tensors, each by as many blocks as it has chunks; where states are in codes, by blocks that take one chunk after
// another.
template <typename P, typename G, typename S, typename Rule>
__device__ __forceinline__ void update_many(const Rule& rule, const UpdateTable& table, u32 count,
                                            const float* hyper) {
    u32 chunk;
    if constexpr (CODED<S>) {
        __shared__ DynamicTables<Rule::STATES> tables;
        tables.fill();
#pragma unroll 1
        for (u32 block = blockIdx.x; block < table.rows[count - 1].end; block += gridDim.x) {
            const UpdateRow& row = table.rows[find_row(table, count, block, chunk)];
            const u64 start = u64(chunk) * UPDATE_CHUNK, end = min(start + UPDATE_CHUNK, row.len);
            update_blocks(rule, static_cast<P*>(row.p), static_cast<G*>(row.g), static_cast<S*>(row.m),
                          static_cast<S*>(row.v), row.master, start, end, CODED_MANY_THREADS * INT8_LANE, row.len,
                          Draws(row.site, hyper), tables);
        }
    } else {
        const UpdateRow& row = table.rows[find_row(table, count, blockIdx.x, chunk)];
        update_chunk(rule, static_cast<P*>(row.p), static_cast<G*>(row.g), static_cast<S*>(row.m), static_cast<S*>(row.v),
                     row.master, chunk, row.len, Draws(row.site, hyper));
    }
}

// The first of a kernel's parameters, read where the driver put it.
#define TABLE(type) const __grid_constant__ type table, u32 count

// Threads of a block, and blocks on a multiprocessor at least. Those that look codes up share a table, and wait for it.
#define UPDATE_BOUNDS_f32 UPDATE_THREADS
#define UPDATE_BOUNDS_bf16 UPDATE_THREADS
#define UPDATE_BOUNDS_int8 CODED_THREADS, CODED_BLOCKS
#define UPDATE_MANY_BOUNDS_f32 UPDATE_THREADS
#define UPDATE_MANY_BOUNDS_bf16 UPDATE_THREADS
#define UPDATE_MANY_BOUNDS_int8 CODED_MANY_THREADS, CODED_MANY_BLOCKS

// The kernels of one rule for all types of parameter, gradient and state, which they are named after. `NUMBERS_rule` are the
// parameters behind the tensors, `RULE_rule` is made of them.
#define UPDATE_KERNELS(rule, p_name, P, g_name, G, s_name, S)                                                          \
    PLIMSOLL_EXPORT __launch_bounds__(UPDATE_BOUNDS_##s_name) rule##_##p_name##_##g_name##_##s_name(                   \
        P* p, G* g, S* m, S* v, float* master, u64 len, u32 site, NUMBERS_##rule) {                                    \
        wait_for_previous_kernel();                                                                                    \
        update_one<P, G, S>(RULE_##rule, p, g, m, v, master, hyper, len, site);                                        \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(UPDATE_MANY_BOUNDS_##s_name) rule##_many_##p_name##_##g_name##_##s_name(         \
        TABLE(UpdateTable), NUMBERS_##rule) {                                                                          \
        wait_for_previous_kernel();                                                                                    \
        update_many<P, G, S>(RULE_##rule, table, count, hyper);                                                        \
    }

#define UPDATE_STATES(rule, p_name, P, g_name, G)                                                                      \
    UPDATE_KERNELS(rule, p_name, P, g_name, G, f32, float)                                                             \
    UPDATE_KERNELS(rule, p_name, P, g_name, G, bf16, bf16)                                                             \
    UPDATE_KERNELS(rule, p_name, P, g_name, G, int8, Int8)

#define UPDATE_TYPES(rule)                                                                                             \
    UPDATE_STATES(rule, f32, float, f32, float)                                                                        \
    UPDATE_STATES(rule, bf16, bf16, f32, float)                                                                        \
    UPDATE_STATES(rule, bf16, bf16, bf16, bf16)                                                                        \
    UPDATE_STATES(rule, f16, f16, f32, float)                                                                          \
    UPDATE_STATES(rule, f16, f16, f16, f16)
