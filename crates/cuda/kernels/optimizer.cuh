// What the updates of all optimizers share: tables of tensors, stochastic rounding, the division into chunks. Optional
// operands are null where they are absent.
#pragma once
#include "codes.cuh"

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
        for (int i = 0; i < N; i++) {
            rule.apply(parameter[i], gradient[i], first[i], second[i]);
            draw[i] = draws.draw(at + i, gradient[i]);
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

// A state in codes of eight bits. Every block of 256 elements has a float32 scale; scales lie behind the codes, at a
// multiple of four. A warp has a block at a time, every lane eight elements of it.
struct Int8 {
    unsigned char code;
};

#define INT8_LANE 8
#define INT8_BLOCK (32 * INT8_LANE)
static_assert(UPDATE_CHUNK % (UPDATE_THREADS * INT8_LANE) == 0, "warps have equal shares");

// What each code stands for, ascending, and what lies halfway to it from the one below, and from it to the next.
struct DynamicTable {
    float numbers[256];
    float2 middles[256];

    template <typename Number> __device__ __forceinline__ void fill(Number number) {
        for (u32 code = threadIdx.x; code < 256; code += blockDim.x) {
            numbers[code] = number(code);
            const float below = code > 0 ? 0.5f * (number(code - 1) + number(code)) : __int_as_float(0xff800000);
            const float above = code < 255 ? 0.5f * (number(code) + number(code + 1)) : __int_as_float(0x7f800000);
            middles[code] = make_float2(below, above);
        }
    }
};

struct DynamicNumbers {
    DynamicTable with_sign, without_sign;

    __device__ __forceinline__ void fill() {
        with_sign.fill([](u32 code) { return dynamic_signed(code); });
        without_sign.fill([](u32 code) { return dynamic_number(code, 2); });
        __syncthreads();
    }
};

// The code of the nearest number. It is found by arithmetic, which may miss it by one where decades meet, and then
// compared with what lies halfway to its neighbours. Neither a search of the table nor functions that few units compute:
// this is most of what an update does.
template <u32 PARTS> __device__ __forceinline__ u32 nearest_code(const DynamicTable& table, float number) {
    const float size = fabsf(number);
    // The inverse of the decade's end, and the parts it is divided into.
    float inverse = 1e6f, parts = PARTS;
    if (size > 1e-6f) inverse = 1e5f, parts = PARTS << 1;
    if (size > 1e-5f) inverse = 1e4f, parts = PARTS << 2;
    if (size > 1e-4f) inverse = 1e3f, parts = PARTS << 3;
    if (size > 1e-3f) inverse = 1e2f, parts = PARTS << 4;
    if (size > 1e-2f) inverse = 1e1f, parts = PARTS << 5;
    if (size > 1e-1f) inverse = 1.0f, parts = PARTS << 6;
    // Of the part's beginning and end, rounding finds the beginning.
    const float part = fmaf(fmaf(size, inverse, -0.1f) * (1.0f / 0.9f), parts, -0.5f);
    const float from_zero = parts + fminf(fmaxf(part, 0.0f), parts - 1.0f) - float(PARTS - 1);
    // Beyond 2²³ the fraction's bits count ones.
    const u32 magnitude = __float_as_uint(from_zero + 8388608.0f) & 0x1ffu;
    u32 code = PARTS == 1 ? (number < 0.0f ? 127 - magnitude : 127 + magnitude) : magnitude;
    const float2 middles = table.middles[code];
    if (number > middles.y) code++;
    else if (!(number > middles.x) && code > 0) code--;
    return code;
}

__device__ __forceinline__ float* int8_scales(Int8* state, u64 len) {
    return reinterpret_cast<float*>(state + (len + 3) / 4 * 4);
}

// A lane's codes, in one access if all of them are there.
union LaneCodes {
    uint2 all;
    unsigned char codes[INT8_LANE];
};
static_assert(sizeof(LaneCodes) == INT8_LANE, "codes without gaps");

__device__ __forceinline__ void load_codes(Int8* state, u64 at, u64 len, int count, const DynamicTable& table,
                                           float (&out)[INT8_LANE]) {
    const float scale = count > 0 ? int8_scales(state, len)[at / INT8_BLOCK] : 0.0f;
    LaneCodes lane;
    if (count == INT8_LANE) {
        lane.all = *reinterpret_cast<const uint2*>(state + at);
    } else {
#pragma unroll
        for (int i = 0; i < INT8_LANE; i++) lane.codes[i] = i < count ? state[at + i].code : 0;
    }
#pragma unroll
    for (int i = 0; i < INT8_LANE; i++) out[i] = i < count ? table.numbers[lane.codes[i]] * scale : 0.0f;
}

// By a whole warp. The largest of the block does not depend on the order it is looked for in.
template <u32 PARTS>
__device__ __forceinline__ void store_codes(Int8* state, u64 at, u64 len, int count, const DynamicTable& table,
                                            const float (&in)[INT8_LANE]) {
    float scale = 0.0f;
#pragma unroll
    for (int i = 0; i < INT8_LANE; i++) scale = i < count ? fmaxf(scale, fabsf(in[i])) : scale;
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) scale = fmaxf(scale, __shfl_xor_sync(0xffffffffu, scale, lanes));
    LaneCodes lane;
    const float inverse = scale > 0.0f ? __fdiv_rn(1.0f, scale) : 0.0f;
#pragma unroll
    for (int i = 0; i < INT8_LANE; i++) lane.codes[i] = (unsigned char)nearest_code<PARTS>(table, in[i] * inverse);
    if (count == INT8_LANE) {
        *reinterpret_cast<uint2*>(state + at) = lane.all;
    } else {
#pragma unroll
        for (int i = 0; i < INT8_LANE; i++) {
            if (i < count) state[at + i].code = lane.codes[i];
        }
    }
    if (at % INT8_BLOCK == 0 && count > 0) int8_scales(state, len)[at / INT8_BLOCK] = scale;
}

template <typename P, typename G, typename Rule>
__device__ __forceinline__ void update_chunk(const Rule& rule, P* p, G* g, Int8* m, Int8* v, float* master, u32 chunk,
                                             u64 len, const Draws& draws) {
    __shared__ DynamicNumbers numbers;
    numbers.fill();
    const u64 start = u64(chunk) * UPDATE_CHUNK, end = min(start + UPDATE_CHUNK, len);
    if (isnan(rule.factor)) return zero_gradient(g, start, end);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (u64 block = start + warp * INT8_BLOCK; block < end; block += UPDATE_THREADS * INT8_LANE) {
        const u64 at = block + lane * INT8_LANE;
        const int count = at < len ? int(min(len - at, u64(INT8_LANE))) : 0;
        Elements<Rule, P, G, INT8_LANE> elements(p, g, master, at, count, count == INT8_LANE);
        load_codes(m, at, len, count, numbers.with_sign, elements.first);
        if (Rule::STATES > 1) load_codes(v, at, len, count, numbers.without_sign, elements.second);
        elements.apply(rule, at, draws);
        // Every lane has read the scales before one writes them.
        __syncwarp();
        store_codes<1>(m, at, len, count, numbers.with_sign, elements.first);
        if (Rule::STATES > 1) store_codes<2>(v, at, len, count, numbers.without_sign, elements.second);
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

// Blocks on a multiprocessor at least. Those that look codes up wait for shared memory, and more of them hide that.
#define UPDATE_BLOCKS_f32 1
#define UPDATE_BLOCKS_bf16 1
#define UPDATE_BLOCKS_int8 3

// The kernels of one rule for all types of parameter, gradient and state, which they are named after. `NUMBERS_rule` are the
// parameters behind the tensors, `RULE_rule` is made of them.
#define UPDATE_KERNELS(rule, p_name, P, g_name, G, s_name, S)                                                          \
    PLIMSOLL_EXPORT __launch_bounds__(UPDATE_THREADS, UPDATE_BLOCKS_##s_name) rule##_##p_name##_##g_name##_##s_name(   \
        P* p, G* g, S* m, S* v, float* master, u64 len, u32 site, NUMBERS_##rule) {                                    \
        update_one<P, G, S>(RULE_##rule, p, g, m, v, master, hyper, len, site);                                        \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(UPDATE_THREADS, UPDATE_BLOCKS_##s_name)                                          \
        rule##_many_##p_name##_##g_name##_##s_name(TABLE(UpdateTable), NUMBERS_##rule) {                               \
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
