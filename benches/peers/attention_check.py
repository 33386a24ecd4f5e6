#!/usr/bin/env python3
"""Checks the tensor-core attention kernels against float64 and times them beside PyTorch's flash attention.

    python3 benches/peers/attention_check.py                          # check, then time
    python3 benches/peers/attention_check.py --time-only
    python3 benches/peers/attention_check.py --define ATTENTION_WITHOUT_WGMMA

Needs a GPU, PyTorch, and NVRTC with CUDA's headers; the kernels are compiled as the program compiles them.
"""

import argparse
import ctypes
import glob
import os
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../crates/cuda/kernels")
NO_WINDOW = 2**31 - 1
NAMES = {torch.bfloat16: "bf16", torch.float16: "f16"}
# ‖result − float64‖ / ‖float64‖ that rounding to the type explains.
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}


def folders(kind):
    """Where CUDA's `lib` or `include` may lie: Python's wheels, then the system's."""
    found = []
    for site in sys.path:
        found += glob.glob(os.path.join(site, f"nvidia/*/{kind}"))
    return found + glob.glob(f"/usr/local/cuda*/{kind}*") + glob.glob(f"/usr/local/cuda*/targets/*/{kind}")


def open_nvrtc():
    paths = [p for folder in folders("lib") for p in sorted(glob.glob(os.path.join(folder, "libnvrtc.so.*")))]
    for path in [*paths, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    sys.exit("NVRTC was not found")


def include_folder():
    for folder in folders("include"):
        if os.path.exists(os.path.join(folder, "cuda_bf16.h")):
            return folder
    sys.exit("CUDA's headers were not found")


class Kernels:
    """Modules compiled at first use, and launches on PyTorch's stream."""

    def __init__(self, defines):
        self.defines = defines
        self.nvrtc, self.driver = open_nvrtc(), ctypes.CDLL("libcuda.so.1")
        major, minor = torch.cuda.get_device_capability()
        self.capability = (major, minor)
        arch = f"sm_{major}{minor}" + ("a" if (major, minor) == (9, 0) else "")
        self.options = [f"--gpu-architecture={arch}", "--std=c++17", f"--include-path={include_folder()}"]
        self.options += [f"--include-path={KERNELS}", *(f"--define-macro={define}" for define in defines)]
        self.modules, self.functions = {}, {}
        torch.zeros(1, device="cuda")

    def check(self, code, what):
        if code != 0:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(code, ctypes.byref(text))
            sys.exit(f"{what}: error {code}, {(text.value or b'').decode()}")

    def compile(self, module):
        with open(os.path.join(KERNELS, f"{module}.cu"), "rb") as file:
            source = file.read()
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, f"{module}.cu".encode(), 0, None, None)
        options = (ctypes.c_char_p * len(self.options))(*(option.encode() for option in self.options))
        code = self.nvrtc.nvrtcCompileProgram(program, len(self.options), options)
        if code != 0:
            self.nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            self.nvrtc.nvrtcGetProgramLog(program, log)
            sys.exit(f"{module}: {log.value.decode()}")
        self.nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        self.nvrtc.nvrtcGetCUBIN(program, cubin)
        loaded = ctypes.c_void_p()
        self.check(self.driver.cuModuleLoadData(ctypes.byref(loaded), cubin), f"loading {module}")
        return loaded

    def launch(self, module, kernel, grid, threads, shared_bytes, args):
        key = (module, kernel)
        if key not in self.functions:
            if module not in self.modules:
                self.modules[module] = self.compile(module)
            function = ctypes.c_void_p()
            code = self.driver.cuModuleGetFunction(ctypes.byref(function), self.modules[module], kernel.encode())
            self.check(code, f"{module}.{kernel}")
            self.functions[key] = function
        function = self.functions[key]
        self.check(self.driver.cuFuncSetAttribute(function, 8, shared_bytes), f"{shared_bytes} bytes of shared memory")
        values = []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                values.append(ctypes.c_void_p(arg.data_ptr()))
            else:
                values.append(ctypes.c_float(arg) if isinstance(arg, float) else ctypes.c_int(arg))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = self.driver.cuLaunchKernel(function, *grid, 1, threads, 1, 1, shared_bytes, stream, pointers, None)
        self.check(code, f"launch of {kernel} on {grid}")


class Attention:
    """One shape, launched as `crates/cuda/src/attention.rs` does it."""

    def __init__(self, kernels, lengths, query_heads, kv_heads, head_dim, dtype, window=None, before=0, behind=0, size=1.0):
        self.kernels, self.lengths, self.dtype, self.before = kernels, lengths, dtype, before
        self.query_heads, self.kv_heads, self.head_dim = query_heads, kv_heads, head_dim
        self.tokens, self.scale = before + sum(lengths) + behind, head_dim**-0.5
        self.window = window or NO_WINDOW
        bounds = [before]
        for length in lengths:
            bounds.append(bounds[-1] + length)
        self.bounds = torch.tensor(bounds, dtype=torch.int32, device="cuda")
        width = (query_heads + 2 * kv_heads) * head_dim
        self.qkv = (torch.randn(self.tokens, width, device="cuda") * size).to(dtype)
        self.d_out = torch.randn(self.tokens, query_heads * head_dim, device="cuda").to(dtype)
        nan = float("nan")
        self.out, self.d_qkv = torch.full_like(self.d_out, nan), torch.full_like(self.qkv, nan)
        self.lse = torch.full((self.tokens, query_heads), nan, device="cuda")
        self.delta = torch.full_like(self.lse, nan)
        hopper = kernels.capability == (9, 0) and "ATTENTION_WITHOUT_WGMMA" not in kernels.defines
        self.stays = hopper and head_dim % 64 == 0
        row_bytes = (head_dim + 63) // 64 * 128
        capability = kernels.capability
        step = 64 if capability in ((8, 0), (8, 7)) or 9 <= capability[0] <= 11 else 32
        self.rows, self.threads = 128, 256
        self.forward_bytes = (128 + 4 * 64) * row_bytes + 1024
        self.gradient_bytes = (256 + 4 * step) * row_bytes + 16 * step + 1024
        self.low_rank_bytes = self.gradient_bytes - 128 * row_bytes
        if self.stays:
            self.threads = 384
            self.forward_bytes = 6 * 128 * row_bytes + 2 * 16 + 3 * 32 + 1024
            self.gradient_bytes = (4 * 128 + 4 * 64) * row_bytes + 2 * 1024 + 2 * 16 + 2 * 32 + 1024

    def launch(self, kernel, heads, shared_bytes, args, low_rank=False):
        rows, threads = (self.rows // 2, 128) if low_rank else (self.rows, self.threads)
        grid = (heads, self.tokens // rows + len(self.lengths) + 2)
        if self.stays and not low_rank:
            grid = (torch.cuda.get_device_properties(0).multi_processor_count, 1)
        args = [*args, len(self.lengths), self.tokens, self.query_heads, self.kv_heads]
        module = f"attention_{NAMES[self.dtype]}_{self.head_dim}"
        args += [float(self.scale), self.window]
        self.kernels.launch(module, kernel, grid, threads, shared_bytes, args)

    def forward(self):
        args = [self.qkv, self.bounds, self.out, self.lse]
        self.launch("attention_forward", self.query_heads, self.forward_bytes, args)

    def grad_queries(self):
        args = [self.qkv, self.out, self.lse, self.d_out, self.bounds, self.d_qkv, self.delta]
        self.launch("attention_grad_queries", self.query_heads, self.gradient_bytes, args)

    def grad_keys(self):
        args = [self.qkv, self.lse, self.d_out, self.bounds, self.d_qkv, self.delta]
        self.launch("attention_grad_keys", self.kv_heads, self.gradient_bytes, args)

    def grad_keys_small(self):
        args = [self.qkv, self.lse, self.d_out, self.bounds, self.d_qkv, self.delta]
        self.launch("attention_grad_keys_small", self.kv_heads, self.low_rank_bytes, args, low_rank=True)

    def backward(self):
        self.grad_queries()
        self.grad_keys()

    def reference(self):
        """`out`, `lse` and `d_qkv` in float64, sequence by sequence."""
        qkv, d_out = self.qkv.double().requires_grad_(), self.d_out.double()
        heads, kv, dim = self.query_heads, self.kv_heads, self.head_dim
        outs = [torch.zeros(self.before, heads * dim, dtype=torch.float64, device="cuda")]
        lses = [torch.zeros(self.before, heads, dtype=torch.float64, device="cuda")]
        start = self.before
        for length in self.lengths:
            rows = qkv[start : start + length].view(length, heads + 2 * kv, dim).transpose(0, 1)
            q, k, v = rows[:heads], rows[heads : heads + kv], rows[heads + kv :]
            k, v = (x.repeat_interleave(heads // kv, dim=0) for x in (k, v))
            distance = torch.arange(length, device="cuda")[:, None] - torch.arange(length, device="cuda")[None, :]
            hidden = (distance < 0) | (distance >= self.window)
            scores = (q @ k.transpose(1, 2) * self.scale).masked_fill(hidden, float("-inf"))
            lses.append(torch.logsumexp(scores, -1).transpose(0, 1))
            outs.append((torch.softmax(scores, -1) @ v).transpose(0, 1).reshape(length, heads * dim))
            start += length
        behind = self.tokens - start
        outs.append(torch.zeros(behind, heads * dim, dtype=torch.float64, device="cuda"))
        lses.append(torch.zeros(behind, heads, dtype=torch.float64, device="cuda"))
        out = torch.cat(outs)
        (d_qkv,) = torch.autograd.grad((out * d_out).sum(), qkv)
        return out.detach(), torch.cat(lses).detach(), d_qkv


def distance(result, expected):
    error = (result.double() - expected).norm() / expected.norm().clamp_min(1e-30)
    return float("inf") if torch.isnan(error) else error.item()


def check(kernels, name, **shape):
    case = Attention(kernels, **shape)
    case.forward()
    case.backward()
    torch.cuda.synchronize()
    out, lse, d_qkv = case.reference()
    queries, keys = case.query_heads * case.head_dim, case.kv_heads * case.head_dim
    errors = {"out": distance(case.out, out), "lse": distance(case.lse, lse)}
    for part, columns in (
        ("d_q", slice(0, queries)),
        ("d_k", slice(queries, queries + keys)),
        ("d_v", slice(queries + keys, None)),
    ):
        errors[part] = distance(case.d_qkv[:, columns], d_qkv[:, columns])
    first = [case.out.clone(), case.lse.clone(), case.d_qkv.clone()]
    same = True
    for _ in range(3):
        for tensor in (case.out, case.lse, case.d_qkv):
            tensor.fill_(float("nan"))
        case.forward()
        case.backward()
        same &= all(torch.equal(a, b) for a, b in zip(first, (case.out, case.lse, case.d_qkv)))
    case.d_qkv[:, queries:] = float("nan")
    case.grad_keys_small()
    same &= torch.equal(first[2], case.d_qkv)
    tolerance = TOLERANCE[case.dtype] * (4 if shape.get("size", 1.0) > 1 else 1)
    good = same and all(error <= tolerance for error in errors.values())
    text = " ".join(f"{part} {error:.1e}" for part, error in errors.items())
    print(f"{'ok  ' if good else 'FAIL'} {name:52} {text}{'' if same else ' DIFFERENT BITS'}", flush=True)
    return good


def check_all(kernels):
    good, ragged = True, [700, 1, 129, 64, 333, 2]
    for dtype in (torch.bfloat16, torch.float16):
        for dim in (64, 80, 96, 128):
            for heads, kv in ((4, 4), (8, 2), (3, 1)):
                name = f"{NAMES[dtype]} {heads}/{kv} heads of {dim}"
                shape = dict(query_heads=heads, kv_heads=kv, head_dim=dim, dtype=dtype)
                good &= check(kernels, f"{name}, ragged", lengths=ragged, before=3, behind=200, **shape)
            good &= check(kernels, f"{name}, window 100", lengths=ragged, window=100, **shape)
            good &= check(kernels, f"{name}, window 1000", lengths=[2100, 5], window=1000, behind=1, **shape)
            good &= check(kernels, f"{name}, large scores", lengths=[300, 40], size=3.0, **shape)
            good &= check(kernels, f"{name}, 100 sequences", lengths=list(range(1, 101)), **shape)
    print("all good" if good else "SOMETHING IS WRONG", flush=True)
    return good


def milliseconds(work, rounds=7, calls=10):
    for _ in range(3):
        work()
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return statistics.median(times)


def torch_flash(count, length, heads, kv, dim, dtype):
    """Milliseconds of PyTorch's flash attention, forward and backward."""
    make = lambda n: torch.randn(count, n, length, dim, device="cuda", dtype=dtype, requires_grad=True)
    q, k, v = make(heads), make(kv), make(kv)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        run = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv)
        out = run()
        d_out = torch.randn_like(out)
        with torch.no_grad():
            forward = milliseconds(run)
        backward = milliseconds(lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True))
    return forward, backward


def time_all(kernels, dtype=torch.bfloat16):
    print(f"{'shape':34} {'forward':>22} {'d_q':>9} {'d_k d_v':>9} {'low_rank':>9} {'backward':>22}   PyTorch's flash attention, forward and backward")
    shapes = [(8, 512, 32, 8, 128), (2, 2048, 32, 8, 128), (4, 2048, 32, 8, 128), (1, 8192, 32, 8, 128), (4, 2048, 32, 32, 128)]
    shapes += [(8, 512, 14, 2, 64), (4, 2048, 12, 2, 128), (4, 2048, 16, 16, 64), (4, 2048, 32, 32, 80), (4, 2048, 32, 32, 96)]
    for count, length, heads, kv, dim in shapes:
        case = Attention(kernels, [length] * count, heads, kv, dim, dtype)
        forward = milliseconds(case.forward)
        queries, keys = milliseconds(case.grad_queries), milliseconds(case.grad_keys)
        low_rank = milliseconds(case.grad_keys_small)
        backward = milliseconds(case.backward)
        del case
        try:
            theirs = torch_flash(count, length, heads, kv, dim, dtype)
        except RuntimeError as error:
            theirs = (float("nan"), float("nan"))
            print(f"PyTorch: {str(error).splitlines()[0]}")
        flops = 4.0 * count * length * (length + 1) / 2 * heads * dim
        rate = lambda ms, factor=1.0: f"{ms:8.3f} ms {factor * flops / ms / 1e9:6.0f} TF/s"
        print(
            f"{f'{count} x {length}, {heads}/{kv} heads of {dim}':34} {rate(forward):>22} {queries:9.3f} {keys:9.3f} {low_rank:9.3f} "
            f"{rate(backward, 2.5):>22}   {rate(theirs[0])} {rate(theirs[1], 2.5)}   "
            f"ours at {theirs[0] / forward:.2f} and {theirs[1] / backward:.2f} of its rate",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--define", action="append", default=[], help="a macro for the kernels, NAME or NAME=VALUE")
    parser.add_argument("--time-only", action="store_true")
    parser.add_argument("--check-only", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    kernels = Kernels(args.define)
    good = args.time_only or check_all(kernels)
    if not args.check_only:
        time_all(kernels)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
