"""The test executables on a card: every operator family, whole updates, parity with Hugging Face, same bits.

Tests of one process run one after another (recordings of one session do not bear another's start beside them), so an
executable's tests are dealt out to several processes.
"""

import fnmatch
import re
import threading
from functools import partial
from pathlib import Path

from program import Bench, Check, Said, Stage, call, say, side_by_side

COLUMNS = [["tests", "tests", "count"], ["processes", "processes", "count"], ["process seconds", "seconds", "seconds"],
           ["longest process s", "longest", "seconds"]]
# Enough to even out long and short tests, few enough that starting does not cost more than testing.
TESTS_PER_PROCESS = 3
# Each takes about as long as all others of its executable; begun first, so that none is left alone in the end.
LONG = ["train.training", "conformance.attention", "conformance.linear", "conformance.autodiff", "conformance.update"]


def listed(executable: Path, bench: Bench) -> list:
    said = call([executable, "--list", "--format", "terse"], bench.clock)
    if said.code != 0:
        raise RuntimeError(f"{executable.name} --list: {said.error()}")
    return [line[: -len(": test")] for line in said.stdout.splitlines() if line.endswith(": test")]


def shards(tests: list) -> list:
    """The tests of each process."""
    count = -(-len(tests) // TESTS_PER_PROCESS)
    return [tests[i::count] for i in range(count)]


def run_shard(bench: Bench, executable: Path, tests: list) -> Said:
    environment = {"CONFORMANCE_CUDA": bench.device.partition(":")[2] or "0"} if bench.on_card else {}
    arguments = [executable, "--exact", *tests, "--test-threads=1"]
    return call(arguments, bench.clock, environment, cwd=bench.scratch, seconds_max=240)


def verdict(said: Said, tests: list) -> str:
    """Why a process did not pass; "" if it ran every test that it was given."""
    found = re.search(r"test result: (\w+)\. (\d+) passed; (\d+) failed", said.stdout)
    if said.timed_out or not found:
        return said.error()
    failed = re.findall(r"^test (\S+) \.\.\. FAILED", said.stdout, re.MULTILINE)
    if failed or said.code != 0:
        panics = re.findall(r"panicked at [^\n]*\n([^\n]*)", said.stdout + said.stderr)
        return f"{', '.join(failed) or f'exit {said.code}'}: {'; '.join(panics)[:300]}"
    if int(found[2]) != len(tests):
        return f"{found[2]} tests ran instead of {len(tests)}"
    return ""


def summed_up(name: str, tests: list, ended: list) -> Check:
    faults = [why for said, shard in ended if (why := verdict(said, shard))]
    figures = {"tests": len(tests), "processes": len(ended), "seconds": sum(said.seconds for said, _ in ended),
               "longest": max((said.seconds for said, _ in ended), default=0.0)}
    if not tests:
        faults.append("the executable lists no tests")
    return Check(name, not faults, "; ".join(faults)[:600], figures)


def run(bench: Bench, pattern: str) -> Stage:
    stage = Stage("correctness", COLUMNS)
    executables = [path for path in sorted(bench.tests.iterdir()) if fnmatch.fnmatch(path.name, pattern)]
    executables.sort(key=lambda path: LONG.index(path.name) if path.name in LONG else len(LONG))
    if not executables:
        stage.checks.append(Check("test executables", False, f"none in {bench.tests} is called {pattern}"))
        return stage
    lists = side_by_side([partial(listed, path, bench) for path in executables], bench.workers)
    dealt = [(path, shard) for path, tests in zip(executables, lists) for shard in shards(tests)]
    say(f"{sum(map(len, lists))} tests in {len(dealt)} processes, {bench.workers} side by side")
    left = {path: len(shards(tests)) for path, tests in zip(executables, lists)}
    lock = threading.Lock()

    def one(path: Path, shard: list) -> tuple:
        said = run_shard(bench, path, shard)
        with lock:
            left[path] -= 1
            why = verdict(said, shard)
            if why:
                say(f"FAILED  {path.name}: {why}")
            elif left[path] == 0:
                say(f"{path.name} ended, {sum(left.values())} processes to go")
        return said, shard

    ended = side_by_side([partial(one, path, shard) for path, shard in dealt], bench.workers)
    for path, tests in zip(executables, lists):
        its = [result for (owner, _), result in zip(dealt, ended) if owner == path]
        stage.checks.append(summed_up(path.name, tests, its))
    return stage
