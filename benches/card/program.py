"""What every stage needs: the program under test, its time limit, checks and progress lines."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Callable, Optional

MIB = 1 << 20
GIB = 1 << 30
REPOSITORY = Path(__file__).resolve().parents[2]
# No single run of the program should take longer, whatever is left of the whole.
CALL_SECONDS_MAX = 120.0

_began = time.monotonic()
_output = threading.Lock()
_children: set = set()


def say(text: str) -> None:
    """A progress line on stderr; tables alone go to stdout."""
    with _output:
        print(f"[{time.monotonic() - _began:6.1f} s] {text}", file=sys.stderr, flush=True)


class Clock:
    """The time left to the whole call."""

    def __init__(self, limit_s: float):
        self.end = time.monotonic() + limit_s

    def left_s(self) -> float:
        return max(0.0, self.end - time.monotonic())


@dataclass
class Said:
    """How one process ended and what it wrote."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False

    def json(self) -> dict:
        return json.loads(self.stdout)

    def error(self) -> str:
        """Its error in one line."""
        if self.timed_out:
            reached = "the time limit was reached before it began"
            return f"not finished after {self.seconds:.0f} s" if self.seconds else reached
        lines = [line for line in self.stderr.splitlines() if line.startswith("error")] or self.stderr.splitlines()[-3:]
        return f"exit {self.code}: {' '.join(lines)[:300]}"


def _environment(changes: dict) -> dict:
    """Ours without the variables that set keys of a run; a change to None removes a variable."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PLIMSOLL_") or k == "PLIMSOLL_CUDA_PATH"}
    kept.update({k: v for k, v in changes.items() if v is not None})
    return {k: v for k, v in kept.items() if changes.get(k, v) is not None}


def start(arguments: list, environment: Optional[dict] = None, cwd: Optional[Path] = None, **streams) -> subprocess.Popen:
    """A child that is ended with us."""
    child = subprocess.Popen([str(a) for a in arguments], env=_environment(environment or {}), cwd=cwd, text=True, **streams)
    _children.add(child)
    return child


def end(child: subprocess.Popen, number: int = signal.SIGKILL) -> int:
    """Sends the signal and waits; the exit code as the shell has it."""
    if child.poll() is None:
        child.send_signal(number)
    try:
        child.wait(timeout=60)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    _children.discard(child)
    return child.returncode


def end_all() -> None:
    for child in list(_children):
        end(child)


def call(arguments: list, clock: Clock, environment: Optional[dict] = None, cwd: Optional[Path] = None,
         seconds_max: float = CALL_SECONDS_MAX) -> Said:
    """Runs to the end, or until the time is up."""
    began = time.monotonic()
    limit_s = min(seconds_max, clock.left_s())
    if limit_s <= 0:
        return Said(-1, "", "", 0.0, timed_out=True)
    child = start(arguments, environment, cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    timed_out = False
    try:
        stdout, stderr = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        timed_out = True
        child.kill()
        stdout, stderr = child.communicate()
    _children.discard(child)
    return Said(child.returncode, stdout, stderr, time.monotonic() - began, timed_out)


@dataclass
class Check:
    """One thing that holds or does not, with the figures it rests on."""

    name: str
    passed: bool
    why: str = ""
    figures: dict = field(default_factory=dict)


@dataclass
class Stage:
    """A table: its checks, and its columns as (title, figure, format); see table.py for the formats."""

    name: str
    columns: list
    checks: list = field(default_factory=list)
    seconds: float = 0.0
    notes: list = field(default_factory=list)
    raw: list = field(default_factory=list)

    def as_json(self) -> dict:
        return asdict(self)


@dataclass
class Bench:
    """Where and how everything runs."""

    program: Path
    tests: Path
    device: str
    clock: Clock
    scratch: Path
    workers: int
    before: Optional[Path] = None

    @property
    def on_card(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def memory(self) -> str:
        """The memory that a budget bounds."""
        return "gpu" if self.on_card else "host"

    def budget(self, size_bytes: int) -> list:
        """The flag for a budget, rounded up to whole MiB."""
        return [f"--{self.memory}", f"{-(-size_bytes // MIB)}MiB"]

    def plimsoll(self, *arguments, environment: Optional[dict] = None, cwd: Optional[Path] = None,
                 device: Optional[str] = None, program: Optional[Path] = None) -> Said:
        command = [program or self.program, *arguments]
        if arguments[0] in ("plan", "bench", "train"):
            command += ["--device", device or self.device]
        return call(command, self.clock, environment, cwd)

    def write(self, name: str, run: dict) -> Path:
        """A run file; JSON is YAML."""
        path = self.scratch / f"{name}.yaml"
        path.write_text(json.dumps(run))
        return path


def side_by_side(jobs: list, workers: int) -> list:
    """The results of some functions, in their order."""
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]


def checked(name: str, test: Callable[[], tuple]) -> Check:
    """A check from a function that gives (why it failed or "", figures); what it raises is a failure."""
    try:
        why, figures = test()
    except Exception as error:  # Whatever goes wrong belongs into the table, not on top of it.
        why, figures = f"{type(error).__name__}: {error}"[:300], {}
    check = Check(name, not why, why, figures)
    say(f"{'passed' if check.passed else 'FAILED'}  {name}{'' if check.passed else ': ' + why}")
    return check


def overrun(report: dict, budget_bytes: Optional[int], bounded: str) -> str:
    """What of a bench or train report is above its plan, or of the plan above the budget."""
    faults = []
    for memory in ("gpu", "host"):
        used, planned = report[memory]["used_bytes"], report[memory]["planned_bytes"]
        if used > planned:
            faults.append(f"{memory} used {used / planned:.4f} of the plan, {(used - planned) / MIB:.1f} MiB above it")
    planned = report[bounded]["planned_bytes"]
    if budget_bytes is not None and planned > budget_bytes:
        faults.append(f"{bounded} plan is {(planned - budget_bytes) / MIB:.1f} MiB above the budget")
    return "; ".join(faults)


def card_memory(device: str) -> Optional[dict]:
    """The card's name, driver and memory in bytes, as nvidia-smi has them."""
    ordinal = device.partition(":")[2] or "0"
    query = "name,driver_version,memory.total,memory.used,memory.free"
    try:
        said = subprocess.run(["nvidia-smi", "-i", ordinal, f"--query-gpu={query}", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, timeout=20)
        name, driver, *sizes = [part.strip() for part in said.stdout.strip().splitlines()[0].split(",")]
        total, used, free = (int(size) * MIB for size in sizes)
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return None
    return {"name": name, "driver": driver, "total_bytes": total, "used_bytes": used, "free_bytes": free}
