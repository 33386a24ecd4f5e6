// Parts of a weight in few bits, decoded into scratch: runs of its rows or of its columns, packed tightly. Of an element,
// `number(code)·scale` in float32 is rounded once.
#include "stored.cuh"

// Rows of a block: its warps have one each at a time, four times over, so that as many loads are under way.
#define WARPS 8
#define TURNS 4
// `total` elements in rows of `width`, `stride` apart in the weight, from its element `first` on: all whole packs.
template <typename F, typename S, typename T>
__device__ __forceinline__ void decode(const u8* codes, const void* scales, const float2* nested, T* to, u64 total,
                                       u32 width, u64 stride, u64 first, u32 first_row) {
    __shared__ float numbers[NF4_CODES];
    fill(numbers);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 col = (blockIdx.y * WARP + lane) * PACK;
    if (col >= width) return;
    typename F::Codes read[TURNS];
    typename S::Loaded scale[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const u32 row = (blockIdx.x * TURNS + turn) * WARPS + warp;
        // What is not there is read where something is.
        const bool there = u64(row) * width + col < total;
        const u64 at = there ? first + row * stride + col : first;
        read[turn] = F::load(codes, at);
        scale[turn] = S::load(scales, nested, F::block(at, there ? first_row + row : first_row));
    }
    float factor[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) factor[turn] = S::scale(scale[turn]);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const u32 row = (blockIdx.x * TURNS + turn) * WARPS + warp;
        const u64 at = u64(row) * width + col;
        if (at >= total) continue;
        float decoded[PACK];
#pragma unroll
        for (int i = 0; i < PACK; i++) decoded[i] = __fmul_rn(F::number(read[turn], i, numbers), factor[turn]);
        store_some(to + at, PACK, true, decoded);
    }
}

// The same of any sizes, an element for each thread; `block` elements share a scale.
template <typename F, typename T>
__device__ __forceinline__ void decode_any(const u8* codes, const void* scales, const float2* nested, T* to, u64 total,
                                           u32 width, u64 stride, u64 first, u64 block) {
    __shared__ float numbers[NF4_CODES];
    fill(numbers);
    const u64 index = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (index >= total) return;
    const u64 at = first + index / width * stride + index % width;
    const float scale = nested == nullptr ? PlainScales::scale(PlainScales::load(scales, nested, at / block))
                                          : NestedScales::scale(NestedScales::load(scales, nested, at / block));
    to[index] = from_float<T>(__fmul_rn(F::one(codes, at, numbers), scale));
}

#define EXPORT_DECODE(name, F, S, suffix, T)                                                                           \
    PLIMSOLL_EXPORT __launch_bounds__(WARP* WARPS)                                                                     \
        decode_##name##_##suffix(const u8* codes, const void* scales, const float2* nested, T* to, u64 total,          \
                                 u32 width, u64 stride, u64 first, u32 first_row) {                                    \
        wait_for_previous_kernel();                                                                                    \
        decode<F, S>(codes, scales, nested, to, total, width, stride, first, first_row);                               \
    }
#define EXPORT_ANY(name, F, suffix, T)                                                                                 \
    PLIMSOLL_EXPORT __launch_bounds__(WARP* WARPS)                                                                     \
        decode_any_##name##_##suffix(const u8* codes, const void* scales, const float2* nested, T* to, u64 total,      \
                                     u32 width, u64 stride, u64 first, u64 block) {                                    \
        wait_for_previous_kernel();                                                                                    \
        decode_any<F>(codes, scales, nested, to, total, width, stride, first, block);                                  \
    }
#define EXPORT_FORMATS(suffix, T)                                                                                      \
    EXPORT_DECODE(nf4, Nf4, PlainScales, suffix, T)                                                                    \
    EXPORT_DECODE(nf4_nested, Nf4, NestedScales, suffix, T)                                                            \
    EXPORT_DECODE(int8, Int8, PlainScales, suffix, T)                                                                  \
    EXPORT_DECODE(e4m3, E4m3, PlainScales, suffix, T)                                                                  \
    EXPORT_ANY(nf4, Nf4, suffix, T)                                                                                    \
    EXPORT_ANY(int8, Int8, suffix, T)                                                                                  \
    EXPORT_ANY(e4m3, E4m3, suffix, T)
PLIMSOLL_FOR_EACH_TYPE(EXPORT_FORMATS)
