"""Takes a card's memory but for so many bytes, says so, and holds it until stdin ends.

    python3 benches/card/hold.py ORDINAL LEFT_BYTES
"""

import ctypes
import sys

CHUNK_BYTES = 4 << 30


def required(status: int, what: str) -> None:
    if status != 0:
        sys.exit(f"{what}: CUDA error {status}")


def main() -> None:
    ordinal, left_bytes = int(sys.argv[1]), int(sys.argv[2])
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.exit(f"no driver: {error}")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    required(cuda.cuInit(0), "cuInit")
    required(cuda.cuDeviceGet(ctypes.byref(device), ordinal), "cuDeviceGet")
    required(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    required(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    held = 0
    while True:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        required(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
        size = min(CHUNK_BYTES, free.value - left_bytes)
        address = ctypes.c_uint64()
        # The driver hands out whole pages of 2 MiB.
        if size < 2 << 20 or cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) != 0:
            break
        held += size
    print(f"holding {held} bytes, {free.value} are left", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
