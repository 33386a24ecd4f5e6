// The rows of sequences' last tokens, and their gradient's way back among those of all tokens. Rows are copied as bits.
#include "plimsoll.cuh"

typedef unsigned short u16;

// The last token of a sequence; -1 if it is empty.
__device__ __forceinline__ int last_token(const int* boundaries, u32 sequence, u32 tokens) {
    const int begin = boundaries[sequence], end = boundaries[sequence + 1];
    return begin < 0 || begin >= end || u32(end) > tokens ? -1 : end - 1;
}

// Sixteen bytes of a row, or as many elements as are left of it.
template <typename T> __device__ __forceinline__ void copy_some(const T* from, T* to, u32 count, bool wide) {
    if (wide) {
        store_pack(to, load_pack(from));
    } else {
        for (u32 i = 0; i < count; i++) to[i] = from[i];
    }
}

template <typename T> __device__ __forceinline__ void zero_some(T* to, u32 count, bool wide) {
    if (wide) {
        store_pack(to, Pack<T>{});
    } else {
        for (u32 i = 0; i < count; i++) to[i] = 0;
    }
}

// A thread has one run of columns of one sequence.
template <typename T>
__device__ __forceinline__ void last_rows(const T* x, const int* boundaries, T* out, u32 sequences, u32 tokens, u32 cols) {
    constexpr u32 N = Pack<T>::N;
    const u32 chunks = (cols + N - 1) / N, index = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 sequence = index / chunks, at = index % chunks * N;
    if (sequence >= sequences) return;
    const u32 count = min(N, cols - at);
    const bool wide = cols % N == 0;
    const int token = last_token(boundaries, sequence, tokens);
    T* to = out + u64(sequence) * cols + at;
    if (token >= 0) {
        copy_some(x + u64(token) * cols + at, to, count, wide);
    } else {
        zero_some(to, count, wide);
    }
}

// The same the other way; all rows were zeroed before.
template <typename T>
__device__ __forceinline__ void last_rows_grad(const T* dy, const int* boundaries, T* dx, u32 sequences, u32 tokens,
                                               u32 cols) {
    constexpr u32 N = Pack<T>::N;
    const u32 chunks = (cols + N - 1) / N, index = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 sequence = index / chunks, at = index % chunks * N;
    if (sequence >= sequences) return;
    const int token = last_token(boundaries, sequence, tokens);
    if (token < 0) return;
    copy_some(dy + u64(sequence) * cols + at, dx + u64(token) * cols + at, min(N, cols - at), cols % N == 0);
}

#define KERNELS(bits, T)                                                                                               \
    PLIMSOLL_EXPORT __launch_bounds__(256)                                                                             \
        last_rows_##bits(const T* x, const int* boundaries, T* out, u32 sequences, u32 tokens, u32 cols) {             \
        wait_for_previous_kernel();                                                                                    \
        last_rows<T>(x, boundaries, out, sequences, tokens, cols);                                                     \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(256)                                                                             \
        last_rows_grad_##bits(const T* dy, const int* boundaries, T* dx, u32 sequences, u32 tokens, u32 cols) {        \
        wait_for_previous_kernel();                                                                                    \
        last_rows_grad<T>(dy, boundaries, dx, sequences, tokens, cols);                                                \
    }

KERNELS(16, u16)
KERNELS(32, u32)
