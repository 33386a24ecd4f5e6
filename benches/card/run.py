#!/usr/bin/env python3
"""Everything that needs a card, from prebuilt binaries, in one call.

    benches/card/pack.sh                         # on the build machine: carry/card.tar.xz
    python3 benches/card/run.py --out OUT        # on the machine with the card, in a checkout of the same commit

Stages: correctness, faults, same-bits, timed, lasting, random; `--only` chooses, and has saving and generate too. Tables go to
stdout, progress to stderr, all figures to OUT/card.json. Exits with 1 if a check fails. Needs Python 3.9 or newer, the driver, NVRTC and cuBLASLt.
"""

import argparse
import atexit
import json
import os
import signal
import sys
import tarfile
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import correctness
import faults
import first_start
import generating
import lasting
import random_budgets
import same_bits
import saving
import timed
from program import REPOSITORY, Bench, Check, Clock, Stage, card_memory, end_all, say
from table import stage_table, summary

STAGES = ["correctness", "faults", "same-bits", "timed", "lasting", "random"]
# Only where they are asked for: gigabytes are written, or drawn.
ON_REQUEST = ["saving", "generate"]
ARCHIVE = REPOSITORY / "carry/card.tar.xz"
# Kept back at the end, to write tables.
RESERVE_SECONDS = 5


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Everything that needs a card, from prebuilt binaries")
    stages = lambda text: text.split(",")
    parser.add_argument("--archive", type=Path, default=ARCHIVE, help="what pack.sh made (default: carry/card.tar.xz)")
    parser.add_argument("--program", type=Path, help="this binary instead of the archive's")
    parser.add_argument("--tests", type=Path, help="test executables in this folder instead of the archive's")
    parser.add_argument("--before", type=Path, help="a binary to time in turns with it (default: one that was packed)")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu to try the script out")
    parser.add_argument("--only", type=stages, default=STAGES, metavar="STAGE,…", help=f"some of {', '.join(STAGES + ON_REQUEST)}")
    parser.add_argument("--limit", type=float, default=480, metavar="SECONDS", help="for everything (default: 480)")
    parser.add_argument("--workers", type=int, default=min(12, os.cpu_count() or 1), help="processes side by side")
    parser.add_argument("--families", default="*", metavar="PATTERN", help="test executables, as conformance.norm")
    parser.add_argument("--rows", choices=["short", "all"], default="short", help="of the timed runs")
    parser.add_argument("--repeats", type=int, metavar="N", help="of each timed run (default: 1, with --before 2)")
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[1], metavar="N,…")
    parser.add_argument("--random-seconds", type=float, default=150, metavar="SECONDS", help="at most (default: 150)")
    parser.add_argument("--random-workers", type=int, metavar="N", help="random budgets side by side (default: 24 at most)")
    parser.add_argument("--random-runs", type=int, default=0, metavar="N", help="fail with fewer random runs than this")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT") or None, help="for card.json (default: $OUT)")
    arguments = parser.parse_args()
    unknown = [stage for stage in arguments.only if stage not in STAGES + ON_REQUEST]
    if unknown:
        parser.error(f"unknown stage `{unknown[0]}`; expected one of {', '.join(STAGES + ON_REQUEST)}")
    if arguments.before and not arguments.before.is_file():
        parser.error(f"--before: {arguments.before} does not exist")
    return arguments


def unpack(archive: Path, folder: Path) -> dict:
    """Unpacks the archive; what it says about the build."""
    if not archive.is_file():
        sys.exit(f"error: {archive} does not exist\n"
                 "hint: make it with benches/card/pack.sh on a machine with a Rust toolchain")
    with tarfile.open(archive) as tar:
        # Older Pythons have no filter and need none for an archive of our own.
        tar.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    build = json.loads((folder / "build.json").read_text())
    say(f"unpacked {archive.name}: build {build['commit']}, {sum(1 for _ in (folder / 'tests').iterdir())} test executables")
    return build


@contextmanager
def at_build_path(root: str):
    """Test executables know their fixtures by the path they were built at: for this call, it leads to this checkout."""
    path = Path(root)
    if path.exists():
        if not (path / "fixtures/parity").is_dir():
            sys.exit(f"error: {path} is in the way: tests look for their fixtures there\nhint: pack in another folder")
        yield
        return
    missing = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(REPOSITORY)
    except OSError as error:
        sys.exit(f"error: tests look for their fixtures at {path}, which cannot be made: {error}\n"
                 "hint: pack in a folder whose path can be made on this machine too")
    say(f"{path} leads to {REPOSITORY} for this call")
    try:
        yield
    finally:
        path.unlink()
        for parent in missing:
            parent.rmdir()


def random_stage(bench: Bench, arguments: argparse.Namespace, first: Stage) -> Stage:
    seconds = min(arguments.random_seconds, bench.clock.left_s() - RESERVE_SECONDS)
    workers = arguments.random_workers or random_budgets.workers_of(bench)
    counted = first.checks[-1].figures.get("counted")
    if bench.on_card and counted != "process":
        say(f"memory is counted for the {counted}, so random budgets run one at a time")
        workers = 1
    return random_budgets.run(bench, arguments.seeds, seconds, workers, arguments.random_runs)


def run_stages(bench: Bench, arguments: argparse.Namespace) -> list:
    first = timed_stage(partial(first_start.run, bench), "first start")
    if not all(check.passed for check in first.checks):
        say("the program does not run on this device; nothing else is tried")
        return [first]
    repeats = arguments.repeats or (2 if bench.before else 1)
    stages = {
        "correctness": partial(correctness.run, bench, arguments.families),
        "faults": partial(faults.run, bench),
        "same-bits": partial(same_bits.run, bench),
        "timed": partial(timed.run, bench, arguments.rows == "all", repeats),
        "generate": partial(generating.run, bench),
        "saving": partial(saving.run, bench),
        "lasting": partial(lasting.run, bench),
        # Last: it takes what time is left.
        "random": partial(random_stage, bench, arguments, first),
    }
    return [first] + [timed_stage(stage, name) for name, stage in stages.items() if name in arguments.only]


def timed_stage(stage, name: str) -> Stage:
    """A stage with its time; what it raises is a failed check."""
    say(f"== {name}")
    began = time.monotonic()
    try:
        done = stage()
    except Exception as error:
        done = Stage(name, [], [Check(name, False, f"{type(error).__name__}: {error}")])
    done.seconds = time.monotonic() - began
    say(f"== {name} took {done.seconds:.1f} s")
    return done


def main() -> int:
    arguments = parsed()
    clock = Clock(arguments.limit - RESERVE_SECONDS)
    began = time.monotonic()
    atexit.register(end_all)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Before anything is on the card.
    machine = card_memory(arguments.device) if arguments.device != "cpu" else None
    with tempfile.TemporaryDirectory(prefix="plimsoll-card-") as folder:
        packed, scratch = Path(folder) / "packed", Path(folder) / "scratch"
        packed.mkdir()
        scratch.mkdir()
        complete = arguments.program and (arguments.tests or "correctness" not in arguments.only)
        build = {"commit": f"of {arguments.program}"} if complete else unpack(arguments.archive, packed)
        program = (arguments.program or packed / "plimsoll").resolve()
        tests = (arguments.tests or packed / "tests").resolve()
        before = (arguments.before or packed / "plimsoll-before").resolve()
        before = before if before.is_file() else None
        bench = Bench(program, tests, arguments.device, clock, scratch, arguments.workers, before)
        try:
            with at_build_path(build.get("root", str(REPOSITORY))):
                stages = [stage.as_json() for stage in run_stages(bench, arguments)]
        finally:
            end_all()
    card = {"build": build, "machine": machine or {"name": arguments.device}, "device": arguments.device,
            "seconds": time.monotonic() - began, "stages": stages}
    tables = "\n".join([summary(card), *[stage_table(stage) for stage in stages]])
    print(tables, flush=True)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "card.json").write_text(json.dumps(card, indent=1))
        (arguments.out / "card.md").write_text(tables)
        say(f"all figures: {arguments.out / 'card.json'}")
    failed = [check["name"] for stage in stages for check in stage["checks"] if not check["passed"]]
    say(f"{len(failed)} checks failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
