#!/usr/bin/env python3
"""Checks the CUDA kernels that only move memory (norms, rotary positions, adapters) against float64 and times them.

    python3 benches/peers/memory_check.py                               # check and time what is there
    python3 benches/peers/memory_check.py --baseline OTHER/kernels      # beside another version of the kernels
    python3 benches/peers/memory_check.py --only rope,norm --compile-only

Needs a GPU, PyTorch, and NVRTC with CUDA's headers; the kernels are compiled as the program compiles them. Times are
medians over replays of a recorded sequence whose inputs are too large for the cache. `same` says that results have the
bits of the baseline.
"""

import argparse
import ctypes
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from attention_check import KERNELS, distance, include_folder, open_nvrtc

TOKENS, DIM, FFN, HEADS, KV_HEADS, HEAD_DIM = 4096, 4096, 14336, 32, 8, 128
BF16 = torch.bfloat16
U32 = 0xFFFFFFFF
SUM_NUMBERS = 128


class Variant:
    """One way to compile the kernels and to launch them."""

    def __init__(self, name, folder=KERNELS, defines=(), **options):
        self.name, self.folder, self.defines, self.options = name, folder, tuple(defines), options


class Compiler:
    """Machine code of a module, and functions in it, each made once."""

    def __init__(self):
        self.nvrtc, self.code, self.functions = open_nvrtc(), {}, {}

    def compile(self, module, folder, defines, arch="sm_90a"):
        with open(os.path.join(folder, f"{module}.cu"), "rb") as file:
            source = file.read()
        options = [f"--gpu-architecture={arch}", "--std=c++17", f"--include-path={include_folder()}"]
        options += [f"--include-path={folder}", *(f"--define-macro={define}" for define in defines)]
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, f"{module}.cu".encode(), 0, None, None)
        texts = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if self.nvrtc.nvrtcCompileProgram(program, len(options), texts) != 0:
            self.nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            self.nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"{module} {defines}: {log.value.decode()}")
        self.nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        self.nvrtc.nvrtcGetCUBIN(program, cubin)
        self.code[module, folder, defines] = cubin

    def compile_all(self, wanted, arch):
        with ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(self.compile, *key, arch) for key in sorted(set(wanted))]:
                done.result()

    def load(self, driver):
        self.driver, self.modules, self.shared_bytes = driver, {}, {}

    def check(self, code, what):
        if code != 0:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(code, ctypes.byref(text))
            sys.exit(f"{what}: error {code}, {(text.value or b'').decode()}")

    def function(self, module, variant, kernel):
        key = (module, variant.folder, variant.defines)
        if (key, kernel) not in self.functions:
            if key not in self.modules:
                loaded = ctypes.c_void_p()
                self.check(self.driver.cuModuleLoadData(ctypes.byref(loaded), self.code[key]), f"loading {module}")
                self.modules[key] = loaded
            function = ctypes.c_void_p()
            self.check(self.driver.cuModuleGetFunction(ctypes.byref(function), self.modules[key], kernel.encode()), kernel)
            self.functions[key, kernel] = function
        return self.functions[key, kernel]

    def launch(self, module, variant, kernel, grid, threads, shared_bytes, args):
        """Tensors are passed as addresses, None as null, floats and ints as 32 bits, ctypes as they are."""
        function = self.function(module, variant, kernel)
        if self.shared_bytes.get(function.value) != shared_bytes:
            self.check(self.driver.cuFuncSetAttribute(function, 8, shared_bytes), f"{shared_bytes} bytes of shared memory")
            self.shared_bytes[function.value] = shared_bytes
        values = []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                values.append(ctypes.c_uint64(arg.data_ptr()))
            elif arg is None:
                values.append(ctypes.c_uint64(0))
            elif isinstance(arg, float):
                values.append(ctypes.c_float(arg))
            elif isinstance(arg, int):
                values.append(ctypes.c_uint32(arg & U32))
            else:
                values.append(arg)
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid = [*grid, 1, 1][:3]
        code = self.driver.cuLaunchKernel(function, *grid, threads, 1, 1, shared_bytes, stream, pointers, None)
        self.check(code, f"launch of {kernel} on {grid} x {threads}")


def random(*shape, dtype=BF16, size=1.0):
    return (torch.randn(*shape, device="cuda") * size).to(dtype)


def mix(x):
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & U32
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & U32
    return x ^ (x >> 16)


class Dropout:
    """A mask as `crates/cuda/kernels/plimsoll.cuh` draws it."""

    def __init__(self, p, rows):
        self.threshold, self.site = round(p * 65536), 7
        self.scale = 65536 / (65536 - self.threshold)
        self.words = [0x12345678, 0x9ABCDEF0, 0x0BADF00D, 0xFEEDBEEF]
        signed = [word - (1 << 32) if word >= 1 << 31 else word for word in self.words]
        self.key = torch.tensor(signed, dtype=torch.int32, device="cuda")
        self.row_ids = torch.arange(rows, dtype=torch.int32, device="cuda") * 3 + 11

    def args(self):
        return [self.row_ids, self.key, self.site, self.threshold]

    def kept(self, cols):
        """Whether each element is kept."""
        as_tensor = lambda word: torch.tensor(word, dtype=torch.int64, device="cuda")
        k = [as_tensor(word) for word in self.words]
        ids = self.row_ids.long()
        k0 = k[0] ^ mix(k[2] ^ 0x51ED270B)
        k1 = k[1] ^ mix((k[3] + mix(k[2])) & U32)
        a = mix(mix((mix(k0 ^ 0x9E3779B9) + self.site) & U32) ^ ids)[:, None]
        b = mix((mix(mix(k1 ^ 0x85EBCA6B) ^ ids) + self.site) & U32)[:, None]
        word = (torch.arange(cols // 2, device="cuda")[None, :] + a) & U32
        word = word ^ (word >> 16)
        word = (word * 0x7FEB352D) & U32
        word = word ^ b
        word = word ^ (word >> 15)
        word = (word * 0x846CA68B) & U32
        word = word ^ (word >> 16)
        draws = torch.stack([word & 0xFFFF, word >> 16], dim=-1).reshape(len(ids), cols)
        return draws >= self.threshold


class Case:
    """One kernel, or a few that belong together, on inputs of one shape. `sets` are copies to rotate over."""

    module, sets, exact = "", 3, False

    def variants(self, baseline, ours):
        return [*([baseline] if baseline else []), ours]

    def make(self):
        raise NotImplementedError

    def launch(self, compiler, variant, data):
        raise NotImplementedError

    def outputs(self, data):
        raise NotImplementedError

    def reset(self, data):
        for output in self.outputs(data):
            output.fill_(float("nan"))

    def expected(self, data):
        raise NotImplementedError


class Norm(Case):
    """The sum of a residual and its norm."""

    module, name, exact = "norm", "rms_norm with residual", True
    bytes = 4 * TOKENS * DIM * 2

    def make(self):
        x, h, w = random(TOKENS, DIM), random(TOKENS, DIM), random(DIM, size=0.2) + 1
        return dict(x=x, h=h, w=w, sum=torch.empty_like(x), out=torch.empty_like(x), rstd=torch.empty(TOKENS, device="cuda"))

    def launch(self, compiler, variant, d):
        args = [d["x"], d["h"], d["w"], d["sum"], d["out"], d["rstd"], DIM, 1e-5]
        compiler.launch("norm", variant, "rms_norm_x1_bf16", (TOKENS,), 512, 0, args)

    def outputs(self, d):
        return [d["sum"], d["out"], d["rstd"]]

    def expected(self, d):
        total = (d["x"].float() + d["h"].float()).to(BF16)
        x = total.double()
        rstd = (x.square().mean(1) + 1e-5).rsqrt()
        return [total.double(), x * rstd[:, None] * d["w"].double(), rstd]


class NormGrad(Case):
    module, name, exact = "norm", "rms_norm_grad", True
    bytes = 4 * TOKENS * DIM * 2

    def variants(self, baseline, ours):
        found = [*([baseline] if baseline else []), ours]
        found += [Variant(f"{n} blocks", defines=[f"NORM_GRAD_BLOCKS={n}"]) for n in (2, 4)]
        ahead = ["NORM_GRAD_AHEAD=true", "NORM_GRAD_BLOCKS=2"]
        return found + [Variant(f"ahead, grid {n}", defines=ahead, grid=n) for n in (264, 528, 1024)]

    def make(self):
        x, dy, so_far, w = random(TOKENS, DIM), random(TOKENS, DIM), random(TOKENS, DIM), random(DIM, size=0.2) + 1
        rstd = (x.double().square().mean(1) + 1e-5).rsqrt().float()
        return dict(x=x, dy=dy, so_far=so_far, w=w, rstd=rstd, dx=torch.empty_like(x))

    def launch(self, compiler, variant, d):
        args = [d["x"], d["rstd"], d["dy"], d["w"], d["so_far"], d["dx"], None, TOKENS, DIM]
        grid = variant.options.get("grid", TOKENS)
        compiler.launch("norm", variant, "rms_norm_grad_x1_bf16", (grid,), 512, 0, args)

    def outputs(self, d):
        return [d["dx"]]

    def expected(self, d):
        x, rstd, g = d["x"].double(), d["rstd"].double()[:, None], d["dy"].double() * d["w"].double()
        normed = x * rstd
        return [d["so_far"].double() + rstd * (g - normed * (g * normed).mean(1, keepdim=True))]


class Rope(Case):
    """In place, so that runs start from a copy where results are compared."""

    module, name, exact, sets = "rope", "rope", True, 4
    turned = HEADS + KV_HEADS
    cols = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    bytes = 2 * TOKENS * turned * HEAD_DIM * 2

    def variants(self, baseline, ours):
        found = [*([baseline] if baseline else []), ours]
        return found + [Variant(f"{n} heads", defines=[f"ROPE_HEADS={n}"], heads=n) for n in (1, 4, 5)]

    def make(self):
        angles = torch.rand(TOKENS, HEAD_DIM // 2, device="cuda", dtype=torch.float64) * 6.28
        table = torch.cat([angles.cos(), angles.sin()], 1).float()
        start = random(TOKENS, self.cols)
        positions = torch.arange(TOKENS, device="cuda", dtype=torch.int32) % 1024
        return dict(start=start, qkv=start.clone(), table=table, positions=positions)

    def launch(self, compiler, variant, d):
        chunks = HEAD_DIM // 16
        args = [d["qkv"], d["table"], d["positions"], d["qkv"], self.turned, HEAD_DIM, self.cols, 0, TOKENS, 1.0]
        if variant.options.get("old"):
            threads, blocks = chunks * min(self.turned, 256 // chunks), 1
        else:
            heads = variant.options.get("heads", 2)
            beside = min(-(-self.turned // heads), 512 // chunks)
            threads, blocks = chunks * beside, -(-self.turned // (heads * beside))
        compiler.launch("rope", variant, "rope_bf16", (TOKENS, blocks), threads, 0, args)

    def outputs(self, d):
        return [d["qkv"]]

    def reset(self, d):
        d["qkv"].copy_(d["start"])

    def expected(self, d):
        angles = d["table"].double()[d["positions"].long()][:, None, :]
        cosine, sine = angles.split(HEAD_DIM // 2, -1)
        x = d["start"].double().clone()
        heads = x[:, : self.turned * HEAD_DIM].reshape(TOKENS, self.turned, HEAD_DIM)
        a, b = heads.split(HEAD_DIM // 2, -1)
        x[:, : self.turned * HEAD_DIM] = torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1).reshape(TOKENS, -1)
        return [x]


def sm_count():
    return torch.cuda.get_device_properties(0).multi_processor_count


class Narrow(Case):
    module = "narrow"

    def dropping(self, p):
        self.dropout = Dropout(p, TOKENS) if p > 0 else None
        self.mask_args = self.dropout.args() if p > 0 else [None, None, 0, 0]
        self.scale = self.dropout.scale if p > 0 else 1.0

    def dropped(self, x):
        return x * self.dropout.kept(x.shape[1]) * self.scale if self.dropout else x

    def wide(self, cols):
        return dict(x=random(TOKENS, cols), space=torch.empty(8 << 20, device="cuda"))


class Down(Narrow):
    exact = True

    def __init__(self, rank, depth, p):
        self.rank, self.depth = rank, depth
        self.dropping(p)
        self.name = f"down {rank} of {depth}" + (" dropout" if p > 0 else "")
        self.bytes = TOKENS * depth * 2
        self.sets = 3 if depth > DIM else 6

    def variants(self, baseline, ours):
        stages = 3 if self.rank <= 16 else 2
        other = Variant(f"{stages} stages", defines=[f"DOWN_STAGES={stages}"], stages=stages, regrouped=True)
        return [*super().variants(baseline, ours), Variant("4 warps", warps=4, regrouped=True), other]

    def make(self):
        data = self.wide(self.depth)
        return dict(data, w=random(self.rank, self.depth), y=torch.empty(TOKENS, self.rank, device="cuda", dtype=BF16))

    def launch(self, compiler, variant, d):
        rows, stages = (128, 2) if self.rank <= 16 else (64, 3)
        stages = variant.options.get("stages", stages)
        warp_bytes = stages * (rows * 64 + self.rank // 8 * 512)
        warps = min((226 << 10) // warp_bytes, variant.options.get("warps", 8))
        shared_bytes = warps * warp_bytes
        resident = max(1, min(2, (228 << 10) // (shared_bytes + 2048)))
        tiles = -(-TOKENS // rows)
        splits = max(1, min(resident * sm_count() // tiles, self.depth // 32 // (2 * warps)))
        args = [d["x"], ctypes.c_uint64(self.depth), d["w"], d["y"], d["space"], TOKENS, self.depth, self.rank]
        args += [self.scale, *self.mask_args]
        compiler.launch("narrow", variant, f"down_bf16_{self.rank}", (tiles, splits), warps * 32, shared_bytes, args)

    def outputs(self, d):
        return [d["y"]]

    def expected(self, d):
        return [self.dropped(d["x"].double()) @ d["w"].double().T]


class Up(Narrow):
    exact = True

    def __init__(self, rank, cols, p):
        self.rank, self.cols = rank, cols
        self.dropping(p)
        self.name = f"up {rank} to {cols}" + (" dropout" if p > 0 else "")
        self.bytes = 2 * TOKENS * cols * 2
        self.sets = 3

    def make(self):
        data = dict(start=random(TOKENS, self.cols), w=random(self.rank, self.cols), h=random(TOKENS, self.rank))
        return dict(data, x=data["start"].clone())

    def launch(self, compiler, variant, d):
        rows, blocks = 128, -(-self.cols // 256)
        while rows > 32 and blocks * -(-TOKENS // rows) < 4 * sm_count():
            rows //= 2
        shared_bytes = 16 * (2048 + self.rank // 16 * 512 + 64)
        args = [d["h"], d["w"], d["x"], d["x"], ctypes.c_uint64(self.cols), TOKENS, self.cols, self.rank, rows]
        args += [self.scale, *self.mask_args]
        compiler.launch("narrow", variant, f"up_bf16_{self.rank}", (blocks, -(-TOKENS // rows)), 128, shared_bytes, args)

    def outputs(self, d):
        return [d["x"]]

    def reset(self, d):
        d["x"].copy_(d["start"])

    def expected(self, d):
        return [d["start"].double() + self.dropped(d["h"].double() @ d["w"].double())]


class Gradient(Narrow):
    """With the launch that adds up what blocks left behind, or without."""

    def __init__(self, rank, cols, p, sums):
        self.rank, self.cols, self.sums = rank, cols, sums
        self.dropping(p)
        self.name = f"gradient {rank} of {cols}" + (" dropout" if p > 0 else "") + (" + sums" if sums else "")
        self.bytes = TOKENS * cols * 2
        self.sets = 3 if cols > DIM else 6

    def variants(self, baseline, ours):
        found = [*([baseline] if baseline else []), ours]
        return found + ([Variant("8 sum warps", defines=["SUM_WARPS=8"], sum_warps=8)] if self.sums else [])

    def make(self):
        data = self.wide(self.cols)
        return dict(data, h=random(TOKENS, self.rank), old=random(self.rank, self.cols, dtype=torch.float32), grad=None)

    def launch(self, compiler, variant, d):
        warp_cols = 128 if self.rank == 16 else 64
        shared_bytes = 4 * (8 * 32 * warp_cols + 16 * 16 * (self.rank // 8 | 1) + 64)
        blocks = -(-self.cols // (8 * warp_cols))
        resident = max(1, min(2, (228 << 10) // (shared_bytes + 1024)))
        splits = max(1, min(resident * sm_count() // blocks, TOKENS // 64, d["space"].numel() // (self.rank * self.cols)))
        rows = -(-(-(-TOKENS // splits)) // 16) * 16
        splits = -(-TOKENS // rows)
        args = [d["h"], d["x"], ctypes.c_uint64(self.cols), d["space"], TOKENS, self.cols, self.rank, rows, *self.mask_args]
        compiler.launch("narrow", variant, f"gradient_bf16_{self.rank}", (blocks, splits), 256, shared_bytes, args)
        if not self.sums:
            return
        threads = 32 * variant.options.get("sum_warps", 4)
        numbers = 512 if variant.options.get("old") else SUM_NUMBERS
        args = [d["space"], d["grad"], 1, self.cols, splits, self.rank, self.scale]
        grid = (-(-self.rank * self.cols // numbers),)
        compiler.launch("narrow", variant, f"gradient_sums_bf16_{self.rank}", grid, threads, 0, args)

    def outputs(self, d):
        return [d["grad"]] if self.sums else []

    def reset(self, d):
        d["grad"] = d["old"].clone()

    def expected(self, d):
        return [d["old"].double() + d["h"].double().T @ self.dropped(d["x"].double())] if self.sums else []


class Both(Narrow):
    """Both gradients of the second matrices of adapters of rank 16 that write to columns of these lengths."""

    rank = 16

    def __init__(self, name, lengths):
        self.name, self.lengths, self.cols = f"both + sums, {name}", lengths, sum(lengths)
        self.bytes = TOKENS * self.cols * 2
        self.sets = 2 if self.cols > 20000 else 4
        words, start, self.blocks = [], 0, 0
        for index, length in enumerate(lengths):
            self.blocks += -(-length // 1024)
            words += [start, length, start, index * self.rank, self.blocks]
            start += length
        self.spans = (ctypes.c_uint64 * 40)(*words)

    def variants(self, baseline, ours):
        return [*([baseline] if baseline else []), ours, Variant("8 sum warps", defines=["SUM_WARPS=8"], sum_warps=8)]

    def make(self):
        narrow = len(self.lengths) * self.rank
        data = dict(self.wide(self.cols), h=random(TOKENS, narrow), b=random(self.cols, self.rank))
        old = random(self.cols, self.rank, dtype=torch.float32)
        return dict(data, old=old, dh=torch.empty(TOKENS, narrow, device="cuda", dtype=BF16), db=None)

    def launch(self, compiler, variant, d):
        narrow, rank = len(self.lengths) * self.rank, self.rank
        shared_bytes = 4 * (8 * 32 * 128 + 16 * 16 * 3) + 2 * 8 * 16 * 16 * 4
        splits = max(1, min(sm_count() // self.blocks, TOKENS // 64))
        rows = -(-(-(-TOKENS // splits)) // 16) * 16
        splits = -(-TOKENS // rows)
        weight_sums = d["space"][self.blocks * TOKENS * rank :]
        args = [self.spans, d["x"], ctypes.c_uint64(self.cols), d["h"], narrow, d["b"], d["space"], weight_sums]
        args += [TOKENS, self.cols, rank, rows]
        compiler.launch("narrow", variant, "both_bf16_16", (self.blocks, splits), 256, shared_bytes, args)
        args = [self.spans, d["space"], weight_sums, d["dh"], narrow, d["db"], 1, TOKENS, self.cols, splits, rank, 0.5]
        threads = 32 * variant.options.get("sum_warps", 4)
        items = [TOKENS * narrow, self.cols * rank]
        old = variant.options.get("old")
        grid = -(-sum(items) // 512) if old else sum(-(-count // SUM_NUMBERS) for count in items)
        compiler.launch("narrow", variant, "both_sums_bf16_16", (grid,), threads, 0, args)

    def outputs(self, d):
        return [d["dh"], d["db"]]

    def reset(self, d):
        d["db"] = d["old"].clone()
        d["dh"].fill_(float("nan"))

    def expected(self, d):
        dhs, dbs, start = [], [], 0
        for index, length in enumerate(self.lengths):
            dy, h = d["x"][:, start : start + length].double(), d["h"][:, index * 16 : index * 16 + 16].double()
            dhs.append(0.5 * dy @ d["b"][start : start + length].double())
            dbs.append(d["old"][start : start + length].double() + 0.5 * dy.T @ h)
            start += length
        return [torch.cat(dhs, 1), torch.cat(dbs)]


class Spread(Narrow):
    name, lengths, exact, sets = "spread 16 qkv", (4096, 1024, 1024), True, 4
    bytes = TOKENS * 6144 * 2

    def __init__(self):
        words, start, self.blocks = [], 0, 0
        for index, length in enumerate(self.lengths):
            self.blocks += -(-length // 256)
            words += [start, length, start, index * 16, self.blocks]
            start += length
        self.spans = (ctypes.c_uint64 * 40)(*words)

    def make(self):
        return dict(h=random(TOKENS, 48), b=random(6144, 16), y=torch.empty(TOKENS, 6144, device="cuda", dtype=BF16))

    def launch(self, compiler, variant, d):
        rows = 128
        while rows > 32 and self.blocks * -(-TOKENS // rows) < 4 * sm_count():
            rows //= 2
        args = [self.spans, d["h"], 48, d["b"], d["y"], ctypes.c_uint64(6144), TOKENS, 16, rows, 0.5]
        shared_bytes = 16 * (2048 + 512 + 64)
        compiler.launch("narrow", variant, "spread_bf16_16", (self.blocks, -(-TOKENS // rows)), 128, shared_bytes, args)

    def outputs(self, d):
        return [d["y"]]

    def expected(self, d):
        parts = d["b"].double().split(self.lengths)
        return [torch.cat([0.5 * h @ b.T for h, b in zip(d["h"].double().split(16, 1), parts)], 1)]


def cases():
    found = [Norm(), NormGrad(), Rope()]
    for rank, cols in ((16, DIM), (32, DIM), (48, DIM), (16, FFN)):
        for p in (0.0, 0.1):
            found += [Down(rank, cols, p), Gradient(rank, cols, p, False), Gradient(rank, cols, p, True)]
            found += [Up(rank, cols, p)]
    found += [Both("o", (DIM,)), Both("qkv", (4096, 1024, 1024)), Both("gate up", (FFN, FFN)), Spread()]
    return found


def microseconds(case, compiler, variant, sets, launches=12, rounds=9):
    """Median time of a launch, recorded and replayed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for data in sets:
            case.launch(compiler, variant, data)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(launches):
            case.launch(compiler, variant, sets[i % len(sets)])
    graph.replay()
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / launches)
    return statistics.median(times)


def run(case, variants, compiler, times):
    sets = [case.make() for _ in range(case.sets)]
    expected, first, good = None, None, True
    for variant in variants:
        results = []
        for _ in range(3):
            case.reset(sets[0])
            case.launch(compiler, variant, sets[0])
            torch.cuda.synchronize()
            results.append([output.clone() for output in case.outputs(sets[0])])
        expected = case.expected(sets[0]) if expected is None else expected
        error = max([distance(a, b) for a, b in zip(results[0], expected)], default=0.0)
        repeats = all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other))
        first = first or results[0]
        same = all(torch.equal(a, b) for a, b in zip(first, results[0]))
        fine = repeats and error < 6e-3 and (same or not case.exact or variant.options.get("regrouped", False))
        good &= fine
        for data in sets:
            case.reset(data)
        us = microseconds(case, compiler, variant, sets) if times else float("nan")
        notes = ("" if repeats else " DIFFERENT BITS") + ("" if fine else " WRONG")
        rate = case.bytes / us / 1e6
        bits = "same" if same else "other"
        print(f"{case.name:34} {variant.name:18} {us:8.1f} {rate:7.2f} {error:10.1e}  {bits:6}{notes}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--baseline", help="a folder with another version of the kernels")
    parser.add_argument("--only", default="", help="parts of the names of the cases to run, with commas between them")
    parser.add_argument("--check-only", action="store_true")
    parser.add_argument("--compile-only", action="store_true")
    args = parser.parse_args()
    start = time.time()
    baseline = Variant("baseline", folder=args.baseline, old=True) if args.baseline else None
    if not args.compile_only:
        torch.manual_seed(0)
        torch.zeros(1, device="cuda")
    chosen = [case for case in cases() if any(part in case.name for part in args.only.split(","))]
    plan = [(case, case.variants(baseline, Variant("now"))) for case in chosen]
    compiler = Compiler()
    arch = "sm_90a"
    if not args.compile_only and torch.cuda.get_device_capability() != (9, 0):
        arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    wanted = [(case.module, variant.folder, variant.defines) for case, variants in plan for variant in variants]
    compiler.compile_all(wanted, arch)
    print(f"compiled {len(set(wanted))} modules in {time.time() - start:.0f} s", flush=True)
    if args.compile_only:
        return
    compiler.load(ctypes.CDLL("libcuda.so.1"))
    print(f"{'kernel':34} {'variant':18} {'us':>8} {'TB/s':>7} {'error':>10}  bits", flush=True)
    good = True
    for case, variants in plan:
        good &= run(case, variants, compiler, not args.check_only)
    print(("all good" if good else "SOMETHING IS WRONG") + f", {time.time() - start:.0f} s")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
