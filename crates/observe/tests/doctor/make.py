"""Writes the situations beside this file: what was read of a machine, and which findings that must lead to, and no others."""
import json, pathlib

GIB = 1 << 30
HERE = pathlib.Path(__file__).parent


def host(**changes):
    base = dict(total_bytes=64 * GIB, available_bytes=40 * GIB, limit_bytes=64 * GIB, swap_total_bytes=8 * GIB,
                swap_used_bytes=0, cpus=16, load=6.0, shared_memory=dict(path="/dev/shm", total_bytes=32 * GIB,
                available_bytes=32 * GIB), disks=[dict(path="/", total_bytes=1000 * GIB, available_bytes=600 * GIB)])
    return base | changes


def gpu(used=20, total=24, processes=None, **changes):
    if processes is None:
        processes = [process(bytes=used * GIB)]
    base = dict(name="NVIDIA RTX 4090", total_bytes=total * GIB, used_bytes=int(used * GIB), power_limit_w=450,
                power_default_w=450, pcie_width=16, pcie_width_max=16, processes=processes)
    return base | changes


def process(pid=4242, name="python3", user="ann", bytes=20 * GIB, **more):
    return dict(pid=pid, name=name, user=user, command="python3 train.py", bytes=int(bytes)) | more


def moments(seconds=5, swap=0, faults=0, cpu=4.0, waiting=0.0, cpus=16, gpus=1, **card):
    """`swap` bytes per second, `cpu` and `waiting` processors on average."""
    card = dict(busy_percent=97, used_bytes=0, power_w=380, temperature_c=66, clock_mhz=2500, clock_max_mhz=2600,
                bus_bytes_per_s=2e8, throttled=[]) | card
    return [dict(at_s=t, swapped_in_bytes=int(swap * t / 2), swapped_out_bytes=int(swap * t / 2), major_faults=faults * t,
                 cpu_busy_s=1000 + cpu * t, cpu_waiting_s=50 + waiting * t, gpus=[card] * gpus) for t in range(seconds + 1)]


DRIVER = dict(version="580.65.06", cards_on_bus=1, missing=[])
CASES = {}


def case(name, must, says=(), never=(), **machine):
    """`says` are parts of what is said, `never` what must not be."""
    base = dict(gpus=[gpu()], host=host(), driver=DRIVER, user="ann", runs=[], moments=moments())
    CASES[name] = dict(must=must, says=list(says), never=list(never), machine=base | machine)


case("healthy", {})
case("busy_half_empty_and_swapping", {"swapping": "error", "gpu-memory-unused": "info", "host-nearly-full": "warning"},
     says=["swaps 57.2 MiB/s", "100 % of the time", "the GPU's batch size has nothing to do with it"],
     never=["waits for data", "data workers are too few"], gpus=[gpu(used=10.5, total=20)], host=host(available_bytes=3 * GIB, total_bytes=32 * GIB, swap_used_bytes=5 * GIB),
     moments=moments(swap=60e6, faults=900, cpu=12, waiting=3.5, busy_percent=100))
case("swapping_slows_an_idle_card", {"swapping": "error"},
     host=host(swap_used_bytes=6 * GIB), moments=moments(swap=200e6, faults=4000, waiting=6, busy_percent=35))
case("old_swap", {"swap-in-use": "info"}, host=host(swap_used_bytes=6 * GIB))
case("processors_prepare_data", {"gpu-waits-for-data": "warning"}, moments=moments(cpu=15.2, busy_percent=45))
case("slow_disk", {"gpu-waits-for-data": "warning"}, moments=moments(cpu=3, waiting=5, busy_percent=40))
case("one_thread", {"gpu-waits-for-data": "warning"}, gpus=[gpu(processes=[process(cpus=1.02)])],
     moments=moments(cpu=1.4, busy_percent=55))
case("idle_between_without_evidence", {}, gpus=[gpu(processes=[process(cpus=0.3)])],
     moments=moments(cpu=1, busy_percent=55))
case("spill_to_host", {"gpu-spill": "error"}, says=["compute in host memory", "Prefer No Sysmem Fallback"],
     gpus=[gpu(used=11.9, total=12, name="NVIDIA RTX 3060", power_limit_w=170, power_default_w=170)],
     moments=moments(busy_percent=100, power_w=62, bus_bytes_per_s=9.5e9))
case("full_and_fast", {"gpu-memory-full": "warning"},
     says=["process 4242 is PyTorch", "cannot be seen from outside", "memory_reserved()"], gpus=[gpu(used=23.7)],
     moments=moments(busy_percent=100, power_w=430))
case("half_empty", {"gpu-memory-unused": "info"}, says=["15.0 GiB would pay for larger micro-batches", "plimsoll plan"], gpus=[gpu(used=9)], moments=moments(busy_percent=99))
case("half_empty_and_idle", {"gpu-memory-held-idle": "warning"}, says=["if it is yours and done, end it: kill 4242"],
     gpus=[gpu(used=9)], moments=moments(busy_percent=0, power_w=30, clock_mhz=210))
case("fragmented", {"fragmentation": "warning"},
     gpus=[gpu(used=22, processes=[process(bytes=22 * GIB, reserved_bytes=21 * GIB, allocated_bytes=13 * GIB)])])
case("hot", {"thermal-throttling": "warning"},
     moments=moments(temperature_c=88, clock_mhz=1700, throttled=["heat"]))
case("power_limit", {"power-limited": "info"}, moments=moments(power_w=448, throttled=["power"]))
case("power_lowered", {"power-limit-lowered": "info"}, gpus=[gpu(power_limit_w=300)])
case("power_brake", {"power-brake": "warning"}, moments=moments(throttled=["brake"]))
case("narrow_bus", {"pcie-narrow": "warning"}, gpus=[gpu(pcie_width=4)])
case("host_full", {"host-nearly-full": "warning"}, host=host(available_bytes=4 * GIB))
case("host_out", {"host-nearly-full": "error"}, host=host(available_bytes=GIB))
case("container_near_limit", {"cgroup-near-limit": "error"},
     host=host(limit_bytes=16 * GIB, group=dict(version=2, limit_bytes=16 * GIB, used_bytes=int(15.8 * GIB), kills=0)))
case("container_killed", {"cgroup-killed": "warning"},
     host=host(limit_bytes=16 * GIB, group=dict(version=1, limit_bytes=16 * GIB, used_bytes=2 * GIB, kills=3)))
case("overloaded", {"cpu-overloaded": "warning"}, host=host(load=55.0))
case("disk_full", {"disk-nearly-full": "warning"}, host=host(disks=[dict(path="/data", total_bytes=500 * GIB, available_bytes=4 * GIB)]))
case("disk_large_with_little_share", {},
     host=host(disks=[dict(path="/data", total_bytes=9000 * GIB, available_bytes=300 * GIB)]))
case("small_shm", {"shm-small": "warning"}, host=host(shared_memory=dict(path="/dev/shm", total_bytes=64 << 20, available_bytes=64 << 20)))
case("no_card", {"no-gpu": "info"}, gpus=[], driver=dict(cards_on_bus=0), moments=moments(gpus=0))
case("no_driver", {"no-driver": "error"}, gpus=[], driver=dict(cards_on_bus=8), moments=moments(gpus=0))
case("old_driver", {"driver-old": "error"}, driver=DRIVER | dict(version="470.256.02"))
case("no_nvrtc", {"library-missing": "error"}, driver=DRIVER | dict(missing=[dict(name="NVRTC", install="pip install nvidia-cuda-nvrtc")]))
case("full_of_our_own", {"gpu-memory-full": "warning"}, never=["PyTorch"],
     gpus=[gpu(used=23.7, processes=[process(name="plimsoll")])], moments=moments(busy_percent=100, power_w=430))
case("held_idle_by_another", {"gpu-memory-held-idle": "warning"}, says=["python3 of bob", "ask bob"], never=["kill"],
     gpus=[gpu(used=9, processes=[process(user="bob", bytes=9 * GIB)])],
     moments=moments(busy_percent=0, power_w=30, clock_mhz=210))
case("hot_and_at_its_power_limit", {"thermal-throttling": "warning", "power-limited": "info"},
     says=["because of 91 °C", "air flow", "at its power limit: 440 of 450 W"],
     moments=moments(temperature_c=91, clock_mhz=1500, power_w=440, throttled=["heat", "power"]))
case("shared", {"gpu-shared": "warning"}, gpus=[gpu(used=21, processes=[process(bytes=12 * GIB), process(pid=77, user="bob", bytes=9 * GIB)])])
case("desktop_beside_training", {},
     gpus=[gpu(used=21, processes=[process(), process(pid=900, name="Xorg", user="root", bytes=GIB // 2)])])
case("stale_run", {"stale-run": "warning"}, says=["for 90 minutes", "plimsoll stop runs/reward"], runs=[dict(folder="runs/reward", pid=4242, silent_s=5400)],
     gpus=[gpu(processes=[process(name="plimsoll")])], moments=moments(busy_percent=0, power_w=30, clock_mhz=210))
case("own_run_that_steps", {}, runs=[dict(folder="runs/reward", pid=4242, silent_s=2)])
case("nothing_watched", {}, moments=[])

for name, content in CASES.items():
    (HERE / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
