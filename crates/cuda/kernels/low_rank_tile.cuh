// Sixteen rows of a wide matrix in shared memory, as kernels have them that walk down the rows.
#pragma once

#include "low_rank_parts.cuh"

// Waits for the threads of one group of a block; 0 is the barrier of the whole block.
__device__ __forceinline__ void group_barrier(u32 group, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}

// THREADS neighbours copy the tile together: those of one warp, or of some.
template <int COLS, int THREADS = WARP> struct WideTile {
    static constexpr int PIECES = COLS / 8;
    static constexpr int BYTES = 32 * COLS;
    u32 at;

    // Where a row's piece of eight columns lies: eight rows' pieces are in different banks.
    __device__ __forceinline__ u32 place(u32 row, u32 piece) const {
        const u32 turn = PIECES >= 8 ? row % 8 : row / 2 % 4;
        return at + (row * PIECES + (piece ^ turn)) * 16;
    }

    // A thread's own pieces are those it copies: one of every `OWN_ROWS` rows.
    static constexpr int OWN = 16 * PIECES / THREADS;
    static constexpr int OWN_ROWS = THREADS / PIECES;
    static_assert(THREADS % PIECES == 0 && OWN >= 1, "all rows' pieces of a thread are below each other");
    __device__ __forceinline__ static u32 own_row(int i) { return i * OWN_ROWS + threadIdx.x % THREADS / PIECES; }
    __device__ __forceinline__ static u32 own_piece() { return threadIdx.x % PIECES; }

    __device__ __forceinline__ u32 own(int i) const { return place(own_row(i), own_piece()); }

    // Starts copying; rows from `rows` and columns from `cols` on become zeros.
    template <typename T> __device__ __forceinline__ void fetch(const T* from, u64 stride, u32 rows, u32 cols) const {
        const T* first = from + own_row(0) * stride + 8 * own_piece();
        const bool inside = 8 * own_piece() < cols;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            copy16(own(i), first + i * OWN_ROWS * stride, inside && own_row(i) < rows);
        }
    }

    // Sixteen columns as a factor of a product, for `load_matrices` and `load_matrices_transposed`.
    __device__ __forceinline__ u32 step(int s) const {
        const u32 lane = threadIdx.x % WARP;
        return place(lane % 16, 2 * s + lane / 16);
    }
};

// Sixteen low-rank rows, of which several warps read the same; RT: sixteens in the rank.
template <int RT> struct LowRankTile {
    static constexpr int ROW_BYTES = padded_row_bytes(2 * RT);
    static constexpr int BYTES = 16 * ROW_BYTES;
    u32 at;

    // Starts copying, with the first of those threads that share the tile.
    static constexpr int THREADS = 32 * RT;
    template <typename T>
    __device__ __forceinline__ void fetch(const T* from, u64 stride, u32 rows, u32 rank, u32 thread) const {
        const u32 row = thread / (2 * RT), piece = thread % (2 * RT);
        if (row < 16) copy_piece(at + row * ROW_BYTES + piece * 16, from + row * stride, piece, rank, row < rows);
    }

    // Its transpose as the left factor of a product.
    __device__ __forceinline__ void load_transposed(u32 (&a)[RT][4]) const {
        const u32 lane = threadIdx.x % WARP, row = lane / 16 * 8 + lane % 8;
#pragma unroll
        for (int m = 0; m < RT; m++) load_matrices_transposed(a[m], at + row * ROW_BYTES + (2 * m + lane / 8 % 2) * 16);
    }
};
