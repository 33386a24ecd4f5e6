// Parts of a weight in few bits, decoded into scratch: runs of its rows or of its columns, packed tightly. Of an element,
// `number(code)·scale` in float32 is rounded once.
#include "codes.cuh"

// Elements of a thread: their codes are one load, and sixteen-bit results one store of sixteen bytes.
#define PACK 8
// Rows of a block: its warps have one each at a time, four times over, so that as many loads are under way.
#define WARPS 8
#define TURNS 4
#define NF4_BLOCK 64
#define NESTED_SCALES 256

__device__ constexpr DynamicSigned NESTED_NUMBERS;

// Scales in float32; or codes of them, of which 256 at a time share a scale and an offset. Sums and products are rounded
// one by one, as on the host.
struct Scales {
    const void* scales;
    const float2* nested;

    __device__ __forceinline__ float at(u64 block) const {
        if (nested == nullptr) return static_cast<const float*>(scales)[block];
        const float number = NESTED_NUMBERS.numbers[static_cast<const u8*>(scales)[block]];
        const float2 shared = nested[block / NESTED_SCALES];
        return __fadd_rn(__fmul_rn(number, shared.x), shared.y);
    }
};

// Each format: eight codes as they are loaded, the number of one of them, and which scale is an element's.
struct Nf4 {
    using Codes = u32;
    static __device__ __forceinline__ Codes load(const u8* codes, u64 at) {
        return *reinterpret_cast<const u32*>(codes + at / 2);
    }
    // The first of two is the upper half of its byte.
    static __device__ __forceinline__ float number(Codes codes, int i, const float* numbers) {
        return numbers[codes >> (i / 2 * 8 + (i % 2 ? 0 : 4)) & 15u];
    }
    static __device__ __forceinline__ float one(const u8* codes, u64 at, const float* numbers) {
        return numbers[codes[at / 2] >> (at % 2 ? 0 : 4) & 15u];
    }
    static __device__ __forceinline__ u64 block(u64 at, u32) { return at / NF4_BLOCK; }
};

struct Bytes {
    using Codes = uint2;
    static __device__ __forceinline__ Codes load(const u8* codes, u64 at) {
        return *reinterpret_cast<const uint2*>(codes + at);
    }
    static __device__ __forceinline__ u32 code(Codes codes, int i) { return (i < 4 ? codes.x : codes.y) >> i % 4 * 8 & 255u; }
    static __device__ __forceinline__ u64 block(u64, u32 row) { return row; }
};

struct Int8 : Bytes {
    static __device__ __forceinline__ float number(Codes codes, int i, const float*) { return int8_number(code(codes, i)); }
    static __device__ __forceinline__ float one(const u8* codes, u64 at, const float*) { return int8_number(codes[at]); }
};

struct E4m3 : Bytes {
    static __device__ __forceinline__ float number(Codes codes, int i, const float*) { return e4m3_number(code(codes, i)); }
    static __device__ __forceinline__ float one(const u8* codes, u64 at, const float*) { return e4m3_number(codes[at]); }
};

// The sixteen numbers lie in as many banks, so lanes never wait for each other.
__device__ __forceinline__ void fill(float (&numbers)[NF4_CODES]) {
    if (threadIdx.x < NF4_CODES) numbers[threadIdx.x] = NF4_NUMBERS[threadIdx.x];
    __syncthreads();
}

// `total` elements in rows of `width`, `stride` apart in the weight, from its element `first` on; each a multiple of a pack.
template <typename F, typename T>
__device__ __forceinline__ void decode(const u8* codes, const Scales& scales, T* to, u64 total, u32 width, u64 stride,
                                       u64 first, u32 first_row) {
    __shared__ float numbers[NF4_CODES];
    fill(numbers);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 col = (blockIdx.y * WARP + lane) * PACK;
    if (col >= width) return;
    typename F::Codes read[TURNS];
    float scale[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const u32 row = (blockIdx.x * TURNS + turn) * WARPS + warp;
        if (u64(row) * width + col >= total) continue;
        const u64 at = first + row * stride + col;
        read[turn] = F::load(codes, at);
        scale[turn] = scales.at(F::block(at, first_row + row));
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const u32 row = (blockIdx.x * TURNS + turn) * WARPS + warp;
        const u64 at = u64(row) * width + col;
        if (at >= total) continue;
        float decoded[PACK];
#pragma unroll
        for (int i = 0; i < PACK; i++) decoded[i] = __fmul_rn(F::number(read[turn], i, numbers), scale[turn]);
        store_some(to + at, PACK, true, decoded);
    }
}

// The same of any sizes, an element for each thread; `block` elements share a scale.
template <typename F, typename T>
__device__ __forceinline__ void decode_any(const u8* codes, const Scales& scales, T* to, u64 total, u32 width, u64 stride,
                                           u64 first, u64 block) {
    __shared__ float numbers[NF4_CODES];
    fill(numbers);
    const u64 index = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (index >= total) return;
    const u64 at = first + index / width * stride + index % width;
    to[index] = from_float<T>(__fmul_rn(F::one(codes, at, numbers), scales.at(at / block)));
}

#define EXPORT_DECODE(name, F, suffix, T)                                                                              \
    PLIMSOLL_EXPORT __launch_bounds__(WARP* WARPS)                                                                     \
        decode_##name##_##suffix(const u8* codes, const void* scales, const float2* nested, T* to, u64 total,          \
                                 u32 width, u64 stride, u64 first, u32 first_row) {                                    \
        decode<F>(codes, Scales{scales, nested}, to, total, width, stride, first, first_row);                          \
    }                                                                                                                  \
    PLIMSOLL_EXPORT decode_any_##name##_##suffix(const u8* codes, const void* scales, const float2* nested, T* to,     \
                                                 u64 total, u32 width, u64 stride, u64 first, u64 block) {             \
        decode_any<F>(codes, Scales{scales, nested}, to, total, width, stride, first, block);                          \
    }
#define EXPORT_FORMATS(suffix, T)                                                                                      \
    EXPORT_DECODE(nf4, Nf4, suffix, T) EXPORT_DECODE(int8, Int8, suffix, T) EXPORT_DECODE(e4m3, E4m3, suffix, T)
PLIMSOLL_FOR_EACH_TYPE(EXPORT_FORMATS)
