// Looking tokens up in a table, and summing gradients back into it.
#include "plimsoll.cuh"

#define RANKED_PER_BLOCK 32
#define RANK_SLICES 8
#define SUM_THREADS 128

// A thread has one run of columns of one row. A token outside the vocabulary shows as NaN.
template <typename P, typename T>
__device__ __forceinline__ void embed(const P* table, const int* tokens, T* out, u32 rows, u32 cols, int words,
                                      float scale) {
    constexpr int N = Pack<T>::N;
    const u32 chunks = (cols + N - 1) / N, index = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 row = index / chunks, at = index % chunks * N;
    if (row >= rows) return;
    const int count = min(N, int(cols - at)), token = tokens[row];
    const bool wide = cols % N == 0;
    float v[N];
    if (token >= 0 && token < words) {
        load_some(table + u64(token) * cols + at, count, wide, v);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] *= scale;
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = __int_as_float(0x7fffffff);
    }
    store_some(out + u64(row) * cols + at, count, wide, v);
}

// A stable sort by counting: the place of a token is the number of smaller ones, and of equal ones
// before it. Every lane has a token of its own, every warp a slice of the tokens it is held against.
// Integers add up to the same in any order.
PLIMSOLL_EXPORT __launch_bounds__(RANKED_PER_BLOCK* RANK_SLICES)
    embed_order(const int* tokens, int* sorted_tokens, int* sorted_rows, int rows) {
    wait_for_previous_kernel();
    __shared__ int smaller[RANK_SLICES][RANKED_PER_BLOCK];
    const int slice = threadIdx.x / RANKED_PER_BLOCK, lane = threadIdx.x % RANKED_PER_BLOCK;
    const int row = blockIdx.x * RANKED_PER_BLOCK + lane, token = row < rows ? tokens[row] : 0;
    // Slices begin at multiples of four, so that tokens are read four at a time.
    const int length = (rows + 4 * RANK_SLICES - 1) / (4 * RANK_SLICES) * 4;
    const int end = min(rows, (slice + 1) * length), end_of_fours = end / 4 * 4;
    int rank = 0, other = slice * length;
    for (; other < end_of_fours; other += 4) {
        const int4 four = *reinterpret_cast<const int4*>(tokens + other);
        rank += four.x < token || (four.x == token && other < row);
        rank += four.y < token || (four.y == token && other + 1 < row);
        rank += four.z < token || (four.z == token && other + 2 < row);
        rank += four.w < token || (four.w == token && other + 3 < row);
    }
    for (; other < end; other++) rank += tokens[other] < token || (tokens[other] == token && other < row);
    smaller[slice][lane] = rank;
    __syncthreads();
    if (slice != 0 || row >= rows) return;
    for (int i = 1; i < RANK_SLICES; i++) rank += smaller[i][lane];
    sorted_tokens[rank] = token;
    sorted_rows[rank] = row;
}

// The block at the first place of a word adds up all rows of that word, in their order, onto the
// word's gradient, unless the word is padding; the other blocks have nothing to do. Blocks along y divide the columns.
template <typename T, typename G>
__device__ __forceinline__ void embed_grad(const T* dx, const int* sorted_tokens, const int* sorted_rows, G* table,
                                           int rows, int cols, int words, int padding, float scale) {
    constexpr int N = Pack<T>::N;
    __shared__ int members[SUM_THREADS];
    const int first = blockIdx.x, word = sorted_tokens[first];
    if (word < 0 || word >= words || word == padding || (first > 0 && sorted_tokens[first - 1] == word)) return;
    const int at = (blockIdx.y * SUM_THREADS + threadIdx.x) * N, count = min(N, cols - at);
    const bool wide = cols % N == 0;
    G* total = table + u64(word) * cols + at;
    float sum[N];
    if (count > 0) load_some(total, count, wide, sum);
    int found = SUM_THREADS;
    for (int start = first; found == SUM_THREADS && start < rows; start += SUM_THREADS) {
        const int place = start + threadIdx.x;
        const bool member = place < rows && sorted_tokens[place] == word;
        if (member) members[threadIdx.x] = sorted_rows[place];
        found = __syncthreads_count(member);
        if (count > 0) {
#pragma unroll 4
            for (int i = 0; i < found; i++) {
                float v[N];
                load_some(dx + u64(members[i]) * cols + at, count, wide, v);
#pragma unroll
                for (int j = 0; j < N; j++) sum[j] = fmaf(scale, v[j], sum[j]);
            }
        }
        __syncthreads();
    }
    if (count > 0) store_some(total, count, wide, sum);
}

#define EMBED(from, P, to, T)                                                                                          \
    PLIMSOLL_EXPORT __launch_bounds__(256)                                                                             \
        embed_##from##_##to(const P* table, const int* tokens, T* out, u32 rows, u32 cols, int words, float scale) {   \
        wait_for_previous_kernel();                                                                                    \
        embed<P, T>(table, tokens, out, rows, cols, words, scale);                                                     \
    }

EMBED(f32, float, f32, float)
EMBED(f32, float, bf16, bf16)
EMBED(f32, float, f16, f16)
EMBED(bf16, bf16, bf16, bf16)
EMBED(f16, f16, f16, f16)

#define EMBED_GRAD(from, T, to, G)                                                                                     \
    PLIMSOLL_EXPORT __launch_bounds__(SUM_THREADS)                                                                     \
        embed_grad_##from##_##to(const T* dx, const int* sorted_tokens, const int* sorted_rows, G* table, int rows,    \
                                 int cols, int words, int padding, float scale) {                                      \
        wait_for_previous_kernel();                                                                                    \
        embed_grad<T, G>(dx, sorted_tokens, sorted_rows, table, rows, cols, words, padding, scale);                    \
    }

EMBED_GRAD(f32, float, f32, float)
EMBED_GRAD(bf16, bf16, f32, float)
EMBED_GRAD(bf16, bf16, bf16, bf16)
EMBED_GRAD(f16, f16, f32, float)
EMBED_GRAD(f16, f16, f16, f16)
