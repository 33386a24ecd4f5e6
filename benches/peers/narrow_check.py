"""The kernels of narrow.cu against float64 products, and how close each comes to memory bandwidth.

    python benches/peers/narrow_check.py                 # checks, then GB/s
    python benches/peers/narrow_check.py --only checks
    python benches/peers/narrow_check.py --define DOWN_WARPS=16 --define DOWN_STAGES=2
    python benches/peers/narrow_check.py --sweep         # times of many tile shapes at rank 16

Compiles crates/cuda/kernels/narrow.cu with NVRTC, launches it through the driver on the same grids as
crates/cuda/src/narrow.rs, and compares all six products of an adapter with torch in float64, with and
without dropout, in bf16 and f16, on odd shapes. The dropout mask is drawn here with numpy as well and
must agree element by element. GB/s counts each element of the wide matrix once per read and once per
write; the inputs rotate so that they do not come from the cache. Needs a GPU, torch with CUDA, numpy.
"""

import argparse
import ctypes
import glob
import os
import statistics
import sys

import numpy as np
import torch

KERNELS = os.path.join(os.path.dirname(__file__), "../../crates/cuda/kernels")
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
WORKSPACE_BYTES = 32 << 20
SITE, P = 7, 0.1
KEY = np.array([17, 99, 5, 1234567], dtype=np.uint32)
# The tile shapes for small ranks, as the kernels and narrow.rs have them; each is a macro NARROW_...
SHAPES = {"DOWN_ROW_TILES": 4, "DOWN_RUNS": 1, "DOWN_STAGES": 4, "DOWN_WARPS": 8, "GRADIENT_COL_WARPS": 4,
          "GRADIENT_STAGES": 4, "GRADIENT_WARPS": 16, "PREFETCH": 128}
DOWN_SHAPE = ("DOWN_ROW_TILES", "DOWN_RUNS", "DOWN_STAGES", "DOWN_WARPS")
GRADIENT_SHAPE = ("GRADIENT_COL_WARPS", "GRADIENT_STAGES", "GRADIENT_WARPS")
DOWN_SWEEP = [
    (2, 1, 3, 16), (2, 1, 4, 8), (2, 1, 6, 8), (2, 2, 3, 8), (2, 2, 2, 16), (4, 1, 2, 16), (4, 1, 3, 8), (4, 1, 4, 8),
    (4, 1, 3, 12), (4, 2, 2, 8), (4, 2, 3, 6), (8, 1, 2, 8), (8, 1, 3, 6)]
GRADIENT_SWEEP = [
    (1, 4, 8), (1, 4, 16), (2, 4, 8), (2, 4, 16), (4, 3, 16), (4, 4, 8), (4, 4, 16), (4, 8, 8), (8, 3, 16),
    (8, 4, 8), (8, 4, 16)]


# --- compiling and launching -----------------------------------------------------------------------

def nvrtc():
    places = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    for path in sys.path:
        places += sorted(glob.glob(os.path.join(path, "nvidia/*/lib/libnvrtc.so.*")))
    places += sorted(glob.glob("/usr/local/cuda*/lib64/libnvrtc.so*"))
    for place in places:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    sys.exit("no libnvrtc found")


def include_folder():
    places = ["/usr/local/cuda/include", *glob.glob("/usr/local/cuda-*/include")]
    for path in sys.path:
        places += glob.glob(os.path.join(path, "nvidia/*/include"))
    for place in places:
        if os.path.exists(os.path.join(place, "cuda_bf16.h")):
            return place
    sys.exit("no folder with cuda_bf16.h found")


def macro(name, value):
    if name == "PREFETCH":
        value = f'".L2::{value}B"' if value else '""'
    return f"--define-macro=NARROW_{name}={value}"


def compile_cubin(arch, shapes, one_rank):
    library = nvrtc()
    with open(os.path.join(KERNELS, "narrow.cu")) as file:
        source = file.read()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"narrow.cu", 0, None, None) == 0
    options = [f"--gpu-architecture={arch}", "--std=c++17", f"--include-path={include_folder()}",
               f"--include-path={os.path.abspath(KERNELS)}", *[macro(*shape) for shape in shapes.items()]]
    options += ["--define-macro=NARROW_ONE_RANK"] if one_rank else []
    listed = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    status = library.nvrtcCompileProgram(program, len(options), listed)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    if status != 0:
        sys.exit(log.value.decode())
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, cubin)
    return cubin.raw


class Card:
    def __init__(self, shapes, one_rank=False):
        self.shapes = {**SHAPES, **shapes}
        torch.zeros(1, device="cuda")
        self.driver = ctypes.CDLL("libcuda.so.1")
        properties = torch.cuda.get_device_properties(0)
        self.sm_count = properties.multi_processor_count
        self.capability = (properties.major, properties.minor)
        arch = f"sm_{properties.major}{properties.minor}" + ("a" if self.capability == (9, 0) else "")
        self.cubin = compile_cubin(arch, self.shapes, one_rank)
        self.module = ctypes.c_void_p()
        self.check(self.driver.cuModuleLoadData(ctypes.byref(self.module), self.cubin))
        self.functions = {}
        self.workspace = torch.full((WORKSPACE_BYTES // 4,), float("nan"), device="cuda")

    def check(self, status):
        if status != 0:
            sys.exit(f"the driver answered {status}")

    def shared_bytes_max(self):
        if self.capability in [(8, 0), (8, 7)]:
            return 163 << 10
        return (227 if self.capability[0] in (9, 10, 11) else 99) << 10

    def launch(self, kernel, grid, threads, shared_bytes, args):
        if kernel not in self.functions:
            function = ctypes.c_void_p()
            self.check(self.driver.cuModuleGetFunction(ctypes.byref(function), self.module, kernel.encode()))
            self.functions[kernel] = function
        function = self.functions[kernel]
        if shared_bytes > 48 << 10:
            self.check(self.driver.cuFuncSetAttribute(function, 8, shared_bytes))
        words = []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                words.append(ctypes.c_uint64(arg.data_ptr()))
            elif isinstance(arg, float):
                words.append(ctypes.c_float(arg))
            else:
                words.append(ctypes.c_uint64(arg))
        pointers = (ctypes.c_void_p * len(words))(*[ctypes.addressof(word) for word in words])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(self.driver.cuLaunchKernel(function, *grid, threads, 1, 1, shared_bytes, stream, pointers, None))


# --- the grids of narrow.rs ------------------------------------------------------------------------

def power_of_two(n):
    return 1 << (n - 1).bit_length()


def block_of(card, warp_bytes, warps_max, group):
    limit = card.shared_bytes_max()
    warps = min((limit - 1024) // warp_bytes, warps_max) // group * group
    shared_bytes = warps * warp_bytes
    return warps, shared_bytes, min(max((limit + 1024) // (shared_bytes + 2048), 1), 2)


def splits_of(card, resident, tiles, splits_max, tile_bytes):
    if tiles > 1024:
        return 1
    return max(min(resident * card.sm_count // tiles, splits_max, WORKSPACE_BYTES // (tiles * tile_bytes)), 1)


def dropout_args(alpha, mask):
    if mask is None:
        return [float(alpha), 0, 0, 0, 0]
    scale = np.float32(65536.0) / np.float32(65536 - mask.threshold)
    return [float(np.float32(alpha) * scale), mask.row_ids, mask.key, SITE, mask.threshold]


def down(card, name, wide, weight, rank_first, narrow, alpha, mask=None):
    (rows, rank), depth = narrow.shape, wide.shape[1]
    room = max(power_of_two(rank), 8)
    row_tiles, runs, stages, warps_max = 4, 1, 3, 8
    if room <= 16:
        row_tiles, runs, stages, warps_max = (card.shapes[shape] for shape in DOWN_SHAPE)
    tile_rows = 16 * row_tiles
    warp_bytes = stages * runs * (tile_rows * 64 + 512 * (room // 8 | 1))
    warps, shared_bytes, resident = block_of(card, warp_bytes, warps_max, 1)
    tiles = -(-rows // tile_rows)
    splits = splits_of(card, resident, tiles, depth // (32 * runs) // (2 * warps), tile_rows * room * 4)
    args = [wide, wide.stride(0), weight, int(rank_first), narrow, card.workspace, rows, depth, rank]
    card.launch(f"down_{name}_{room}", (tiles, splits, 1), warps * 32, shared_bytes, args + dropout_args(alpha, mask))


def up(card, name, narrow, weight, rank_first, source, wide, alpha, mask=None):
    (rows, cols), rank = wide.shape, narrow.shape[1]
    room = max(power_of_two(rank), 16)
    shared_bytes = 4 * 4 * (2048 + room // 16 * 512 + 64)
    column_blocks, block_rows = -(-cols // 256), 128
    while block_rows > 32 and column_blocks * -(-rows // block_rows) < 4 * card.sm_count:
        block_rows //= 2
    args = [narrow, weight, int(rank_first), 0 if source is None else source, wide, wide.stride(0), rows, cols, rank,
            block_rows]
    grid = (column_blocks, -(-rows // block_rows), 1)
    card.launch(f"up_{name}_{room}", grid, 128, shared_bytes, args + dropout_args(alpha, mask))


def gradient(card, name, narrow, wide, grad, rank_first, alpha, mask=None):
    (rows, rank), cols = narrow.shape, wide.shape[1]
    room = max(power_of_two(rank), 16)
    col_warps, stages, warps_max = 2, 4, 8
    if room <= 32:
        col_warps, stages, warps_max = (card.shapes[shape] for shape in GRADIENT_SHAPE)
    warp_bytes = stages * (2048 + 256 * (room // 8 | 1) + 64)
    warps, shared_bytes, resident = block_of(card, warp_bytes, warps_max, col_warps)
    tiles = -(-cols // (64 * col_warps))
    splits = splits_of(card, resident, tiles, rows // 16 // (2 * warps // col_warps), room * 64 * col_warps * 4)
    args = [narrow, wide, wide.stride(0), grad, int(rank_first), int(grad.dtype == torch.float32), card.workspace, rows,
            cols, rank]
    card.launch(f"gradient_{name}_{room}", (tiles, splits, 1), warps * 32, shared_bytes,
                args + dropout_args(alpha, mask))


# --- the mask, as every backend draws it -----------------------------------------------------------

def mix(x):
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7feb352d)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846ca68b)
    return x ^ (x >> np.uint32(16))


class DropoutMask:
    def __init__(self, rows, cols):
        self.row_ids = torch.randint(0, 1 << 31, (rows,), device="cuda", dtype=torch.int32)
        self.key = torch.from_numpy(KEY.view(np.int32)).cuda()
        self.threshold = int(float(np.float32(P)) * 65536.0 + 0.5)
        self.cols = cols

    def factors(self):
        """1 / (1 - p) where an element is kept, else 0, in float64, with the p that 16 bits can say."""
        with np.errstate(over="ignore"):
            ids, u = self.row_ids.cpu().numpy().view(np.uint32)[:, None], np.uint32
            key = KEY[:, None]
            k0 = key[0] ^ mix(key[2] ^ u(0x51ed270b))
            k1 = key[1] ^ mix(key[3] + mix(key[2]))
            a = mix(mix(mix(k0 ^ u(0x9e3779b9)) + u(SITE)) ^ ids)
            b = mix(mix(mix(k1 ^ u(0x85ebca6b)) ^ ids) + u(SITE))
            column = np.arange(self.cols, dtype=np.uint32)[None, :]
            words = column // u(2) + a
            words = ((words ^ (words >> u(16))) * u(0x7feb352d)) ^ b
            words = (words ^ (words >> u(15))) * u(0x846ca68b)
            words = words ^ (words >> u(16))
            draws = np.where(column % u(2) == 0, words & u(0xffff), words >> u(16))
        return torch.from_numpy((draws >= self.threshold) * (65536.0 / (65536 - self.threshold))).cuda()


# --- checks ----------------------------------------------------------------------------------------

class Checks:
    def __init__(self):
        self.failed, self.count, self.worst = 0, 0, {}

    def close(self, what, got, expected, limit):
        error = ((got.double() - expected).norm() / expected.norm()).item()
        self.count += 1
        kind = what.split(" ")[0]
        self.worst[kind] = max(self.worst.get(kind, 0.0), error) if error == error else float("nan")
        if not error < limit:
            self.failed += 1
            print(f"FAILED {what}: error {error:.2e}, limit {limit:.0e}")

    def equal(self, what, got, expected):
        self.count += 1
        if not torch.equal(got, expected):
            self.failed += 1
            print(f"FAILED {what}: {(got != expected).sum().item()} of {got.numel()} differ")


def check_mask(card, checks, name):
    """With ones on both sides, what is left of the wide matrix is the mask itself."""
    rows, cols, dtype = 77, 70_000 // 8 * 8, TYPES[name]
    mask = DropoutMask(rows, cols)
    narrow = torch.zeros(rows, 8, device="cuda", dtype=dtype)
    narrow[:, 0] = 1
    weight = torch.ones(8, cols, device="cuda", dtype=dtype)
    wide = torch.full((rows, cols), float("nan"), device="cuda", dtype=dtype)
    up(card, name, narrow, weight, True, None, wide, 1.0, mask)
    kept = mask.factors() != 0
    checks.equal(f"mask {name} up", wide != 0, kept)
    print(f"  share kept: {kept.double().mean().item():.5f}")
    # In the other two, sums over tokens or columns count what was kept.
    ones, counts = torch.ones_like(wide), torch.zeros(8, cols, device="cuda")
    gradient(card, name, narrow, ones, counts, True, 1.0 - mask.threshold / 65536, mask)
    checks.close(f"mask {name} gradient", counts[0], kept.double().sum(0), 1e-6)
    sums = torch.empty(rows, 8, device="cuda", dtype=dtype)
    # Few enough columns that the counts are exact.
    weight.zero_()
    for n in range(8):
        weight[n, n * 61::4099] = 1
    down(card, name, ones, weight, True, sums, 1.0 - mask.threshold / 65536, mask)
    checks.close(f"mask {name} down", sums, kept.double() @ weight.double().T, 4e-3)


def check_products(card, checks, name, rows, wide_cols, rank, start, tail):
    """All six, on columns `start..` of a matrix that has `tail` more."""
    dtype, limit = TYPES[name], 4e-3 if name == "bf16" else 6e-4
    what = f"{name} rows {rows} wide {wide_cols} rank {rank} start {start}"
    def random(*shape):
        return torch.randn(*shape, device="cuda").to(dtype)
    def empty(*shape):
        return torch.full(shape, float("nan"), device="cuda", dtype=dtype)
    alpha = 0.75
    for mask in [DropoutMask(rows, wide_cols), None]:
        label = f"{what} {'dropout' if mask else 'plain'}"
        factors = mask.factors() if mask else torch.ones((), device="cuda", dtype=torch.float64)
        x, a, dh = random(rows, wide_cols), random(rank, wide_cols), random(rows, rank)
        dropped = x.double() * factors
        h = empty(rows, rank)
        down(card, name, x, a, True, h, alpha, mask)
        checks.close(f"1-forward {label}", h, alpha * dropped @ a.double().T, limit)
        again = empty(rows, rank)
        down(card, name, x.clone(), a, True, again, alpha, mask)
        checks.equal(f"1-forward again {label}", again, h)
        for grad_type in [torch.float32, dtype]:
            grad = torch.randn(rank, wide_cols, device="cuda").to(grad_type)
            expected = grad.double() + alpha * dh.double().T @ dropped
            other = grad.clone()
            gradient(card, name, dh, x, grad, True, alpha, mask)
            checks.close(f"2-weight-grad {label}", grad, expected, 3e-5 if grad_type == torch.float32 else limit)
            gradient(card, name, dh, x, other, True, alpha, mask)
            checks.equal(f"2-weight-grad again {label}", other, grad)
        product = alpha * (dh.double() @ a.double()) * factors
        dx = empty(rows, wide_cols)
        up(card, name, dh, a, True, None, dx, alpha, mask)
        checks.close(f"3-input-grad {label}", dx, product, limit)
        old = random(rows, wide_cols)
        dx = empty(rows, wide_cols)
        up(card, name, dh, a, True, old, dx, alpha, mask)
        checks.close(f"3-input-grad onto {label}", dx, product + old.double(), limit)
        up(card, name, dh, a, True, old, old, alpha, mask)
        checks.equal(f"3-input-grad in place {label}", old, dx)

    h, b, y = random(rows, rank), random(wide_cols, rank), random(rows, start + wide_cols + tail)
    before, part = y.clone(), y[:, start:start + wide_cols]
    expected = part.double() + alpha * h.double() @ b.double().T
    up(card, name, h, b, False, part, part, alpha)
    checks.close(f"4-forward {what}", part, expected, limit)
    checks.equal(f"4-forward other columns {what}", y[:, :start], before[:, :start])
    checks.equal(f"4-forward other columns {what}", y[:, start + wide_cols:], before[:, start + wide_cols:])
    dy = before[:, start:start + wide_cols]
    dh = empty(rows, rank)
    down(card, name, dy, b, False, dh, alpha)
    checks.close(f"5-input-grad {what}", dh, alpha * dy.double() @ b.double(), limit)
    grad = torch.randn(wide_cols, rank, device="cuda")
    expected = grad.double() + alpha * dy.double().T @ h.double()
    gradient(card, name, h, dy, grad, False, alpha)
    checks.close(f"6-weight-grad {what}", grad, expected, 3e-5)


def check(card):
    torch.manual_seed(0)
    checks = Checks()
    for name in TYPES:
        check_mask(card, checks, name)
        for rows, wide_cols, rank, start, tail in [
            (1, 8, 4, 0, 0), (7, 72, 8, 8, 8), (33, 264, 16, 0, 64), (100, 1000, 12, 16, 0), (513, 1536, 16, 512, 256),
            (130, 4096, 24, 0, 0), (1000, 2048, 32, 64, 0), (999, 4096, 64, 4096, 1024), (77, 328, 48, 0, 8),
            (4096, 4096, 16, 0, 0), (4095, 1024, 64, 0, 0), (2048, 8960, 8, 0, 0), (40_000, 512, 16, 0, 0),
        ]:
            check_products(card, checks, name, rows, wide_cols, rank, start, tail)
    torch.cuda.synchronize()
    for kind, error in sorted(checks.worst.items()):
        print(f"  {kind:<16} worst error {error:.2e}")
    print(f"{checks.count - checks.failed} of {checks.count} checks passed")
    return checks.failed == 0


# --- bandwidth -------------------------------------------------------------------------------------

def time_us(calls):
    """Median time of one call, among calls on different buffers."""
    for call in calls:
        call()
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(4):
            for call in calls:
                call()
    times = []
    for _ in range(12):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / (4 * len(calls)))
    return statistics.median(times[2:])


def measure(card, rows):
    size = 1 << 30
    source = torch.empty(size, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    copy_us = time_us([lambda: target.copy_(source)])
    print(f"copy: {2 * size / copy_us / 1e3:.0f} GB/s")
    del source, target
    name, dtype = "bf16", torch.bfloat16
    print(f"{'N = ' + str(rows):<34}" + "".join(f"{'r ' + str(rank):>20}" for rank in (8, 16, 64)))
    for wide_cols in (4096, 14336):
        # Several times the cache.
        sets = max(2, (600 << 20) // (rows * wide_cols * 2))
        wides = [torch.randn(rows, wide_cols, device="cuda").to(dtype) for _ in range(sets)]
        mask = DropoutMask(rows, wide_cols)
        lines = {}
        for rank in (8, 16, 64):
            narrow = torch.randn(rows, rank, device="cuda").to(dtype) * 0.01
            out = torch.empty_like(narrow)
            a = torch.randn(rank, wide_cols, device="cuda").to(dtype) * 0.01
            b = a.T.contiguous()
            grad_a, grad_b = torch.zeros(rank, wide_cols, device="cuda"), torch.zeros(wide_cols, rank, device="cuda")
            kernels = {
                "1 forward, dropout": (1, lambda w: down(card, name, w, a, True, out, 1.0, mask)),
                "1 forward, plain": (1, lambda w: down(card, name, w, a, True, out, 1.0)),
                "2 weight grad, dropout": (1, lambda w: gradient(card, name, narrow, w, grad_a, True, 1.0, mask)),
                "3 input grad, dropout, fresh": (1, lambda w: up(card, name, narrow, a, True, None, w, 1.0, mask)),
                "3 input grad, dropout, onto": (2, lambda w: up(card, name, narrow, a, True, w, w, 1.0, mask)),
                "4 forward": (2, lambda w: up(card, name, narrow, b, False, w, w, 1.0)),
                "5 input grad": (1, lambda w: down(card, name, w, b, False, out, 1.0)),
                "6 weight grad": (1, lambda w: gradient(card, name, narrow, w, grad_b, False, 1.0)),
            }
            for label, (passes, kernel) in kernels.items():
                us = time_us([lambda w=w, kernel=kernel: kernel(w) for w in wides])
                gb_s = passes * rows * wide_cols * 2 / us / 1e3
                lines.setdefault(label, []).append(f"{us:9.1f} us {gb_s:5.0f} GB/s")
        for label, cells in lines.items():
            print(f"{wide_cols:>6} {label:<30}" + "".join(cells))


def sweep(rows):
    """Times of many tile shapes, in microseconds, each checked once against the first."""
    rank, name, dtype = 16, "bf16", torch.bfloat16
    candidates = [("down", dict(zip(DOWN_SHAPE, shape), PREFETCH=bytes))
                  for shape in DOWN_SWEEP for bytes in (0, 128, 256)]
    candidates += [("gradient", dict(zip(GRADIENT_SHAPE, shape), PREFETCH=bytes))
                   for shape in GRADIENT_SWEEP for bytes in (0, 128)]
    cards = [(family, shapes, Card(shapes, one_rank=True)) for family, shapes in candidates]
    expected = {}
    for wide_cols in (4096, 14336):
        sets = max(2, (600 << 20) // (rows * wide_cols * 2))
        wides = [torch.randn(rows, wide_cols, device="cuda").to(dtype) for _ in range(sets)]
        mask = DropoutMask(rows, wide_cols)
        narrow = torch.randn(rows, rank, device="cuda").to(dtype) * 0.01
        out = torch.empty_like(narrow)
        a = torch.randn(rank, wide_cols, device="cuda").to(dtype) * 0.01
        b = a.T.contiguous()
        grad_a, grad_b = torch.zeros(rank, wide_cols, device="cuda"), torch.zeros(wide_cols, rank, device="cuda")
        print(f"{'in = ' + str(wide_cols):<63}{'dropout':>8}{'plain':>8}{'B side':>8}")
        for family, shapes, card in cards:
            if family == "down":
                kernels = [lambda w: down(card, name, w, a, True, out, 1.0, mask),
                           lambda w: down(card, name, w, a, True, out, 1.0),
                           lambda w: down(card, name, w, b, False, out, 1.0)]
                result = out
            else:
                kernels = [lambda w: gradient(card, name, narrow, w, grad_a, True, 1.0, mask),
                           lambda w: gradient(card, name, narrow, w, grad_a, True, 1.0),
                           lambda w: gradient(card, name, narrow, w, grad_b, False, 1.0)]
                result = grad_a
            grad_a.zero_()
            kernels[0](wides[0])
            right = expected.setdefault((family, wide_cols), result.double())
            error = ((result.double() - right).norm() / right.norm()).item()
            times = [time_us([lambda w=w, kernel=kernel: kernel(w) for w in wides]) for kernel in kernels]
            label = " ".join(f"{key.split('_', 1)[-1].lower()} {value}" for key, value in shapes.items())
            wrong = "" if error < 3e-3 else f"  WRONG by {error:.1e}"
            print(f"  {family:<9}{label:<52}" + "".join(f"{us:8.1f}" for us in times) + wrong, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=["checks", "times"])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--define", action="append", default=[], metavar="SHAPE=N", help=", ".join(SHAPES))
    parser.add_argument("--sweep", action="store_true", help="time many tile shapes instead")
    options = parser.parse_args()
    if options.sweep:
        return sweep(options.rows)
    card = Card({name: int(value) for name, value in (pair.split("=") for pair in options.define)})
    right = options.only == "times" or check(card)
    if options.only != "checks":
        measure(card, options.rows)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
