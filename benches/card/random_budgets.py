#!/usr/bin/env python3
"""Random models, methods, tasks, precisions and budgets: is what is used within the plan, and the plan within the budget?

    python3 benches/card/random_budgets.py --program PLIMSOLL --seed 1 2 3 --seconds 330 [--out FILE]

Every case is made from its seed and number alone, so that a failure can be run again (--seed S --first N --cases 1). A case
touches the card once: its plans, smallest and fastest, come from one call that plans for a card of that name.
"""

import argparse
import json
import math
import os
import random
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import first_start
import rows
from program import GIB, MIB, Bench, Check, Clock, Said, Stage, card_memory, end_all, overrun, say

COLUMNS = [["runs", "runs", "count"], ["least", "least", "fine"], ["5 %", "low", "fine"], ["median", "median", "fine"],
           ["95 %", "high", "fine"], ["most", "most", "fine"], ["above", "above", "count"]]
# The planner's ceiling for the fastest plan of a case.
CEILING_BYTES = {"gpu": 40 * GIB, "host": 2 * GIB}
# A budget that is refused may be short of the smallest that works by this much, and never by this share of it: what driver
# and recorded schedules take of this card is not in the table of cards.
SHORT_BYTES, SHORT_SHARE = 32 * MIB, 0.05
# Of what is planned on the host, so much must be used, in so many of the runs.
HOST_USED_MIN, HOST_SHARE_MIN = 0.95, 0.9
# The headroom of three mebibytes is more than a twentieth of plans smaller than this, which only a CPU has.
HOST_COUNTED_BYTES = 64 * MIB
BENCH_STEPS, TRAIN_STEPS = 2, 6
# One case in so many trains on rows instead of running bench.
TRAIN_EVERY = 10
# Where a number of runs is asked for, so many of them must have trained on cached, and as many on streamed rows.
TRAINED_SHARE_MIN = 0.01
# What of the card is left to others than the cases.
SPARED_BYTES = 2 * GIB
# A case waits for driver and disk most of the time.
WORKERS_PER_CORE, WORKERS_MAX = 1.5, 24
# The exit code of a plan that fits no budget.
FITS_NOT = 3


class Gate:
    """Lets runs onto the card while their budgets fit together: what they may take is then there."""

    def __init__(self, capacity_bytes: int):
        self.capacity_bytes = self.left_bytes = capacity_bytes
        self.changed = threading.Condition()

    @contextmanager
    def inside(self, size_bytes: int):
        size_bytes = min(size_bytes, self.capacity_bytes)
        with self.changed:
            self.changed.wait_for(lambda: self.left_bytes >= size_bytes)
            self.left_bytes -= size_bytes
        try:
            yield
        finally:
            with self.changed:
                self.left_bytes += size_bytes
                self.changed.notify_all()


@dataclass
class Case:
    """One run to be: its configuration, and where between its smallest and largest plan the budget lies."""

    number: int
    run: dict
    trains: bool
    share: float


def shape(rng: random.Random, on_card: bool) -> dict:
    # Half of the card's are small: they start sooner, and everything beside the arena counts for more.
    large = on_card and rng.random() < 0.5
    key_heads = rng.choice([1, 2, 4, 8] if on_card else [1, 2])
    width = 8 * (rng.randint(12, 220 if large else 64) if on_card else rng.randint(4, 64))
    return {
        "family": rng.choice(["llama", "mistral", "qwen2", "qwen3"]),
        "hidden_size": width,
        "num_hidden_layers": rng.randint(1, (18 if large else 6) if on_card else 6),
        "num_attention_heads": key_heads * rng.choice([1, 2, 3, 4, 7]),
        "num_key_value_heads": key_heads,
        "head_dim": rng.choice([32, 64, 96, 128] if on_card else [16, 32]),
        "intermediate_size": 8 * (rng.randint(16, 560 if large else 160) if on_card else rng.randint(8, 96)),
        "vocab_size": rng.choice([333, 1000, 4096, 32000, 50257, 128256] if on_card else [333, 1000, 4096, 8192]),
        "tie_word_embeddings": rng.random() < 0.5,
        "init": "random",
    }


def method(rng: random.Random):
    if rng.random() < 0.45:
        return "full"
    if rng.random() < 0.15:
        return {"freeze": ["*embed_tokens*"]}
    targets = rng.choice(["all-linear", "all-linear", ["q_proj", "v_proj"], ["down_proj"]])
    return {"lora": {"r": rng.choice([1, 2, 4, 7, 8, 16, 24, 32, 64]), "alpha": 16, "dropout": rng.choice([0, 0.05, 0.1]),
                     "targets": targets, "rslora": rng.random() < 0.2}}


def optimizer(rng: random.Random, precision: str) -> dict:
    if rng.random() < 0.25:
        return {"name": "sgd", **({"momentum": 0.9} if rng.random() < 0.5 else {})}
    return {"name": "adamw", **({"state": "bf16"} if precision == "bf16" and rng.random() < 0.3 else {})}


def draw(seed: int, number: int, on_card: bool, data: Path) -> Case:
    rng = random.Random(f"plimsoll {seed}/{number}")
    trains = number % TRAIN_EVERY == TRAIN_EVERY - 1
    model = shape(rng, on_card)
    task = rng.choice(["sft", "pretrain", "reward"])
    precision = rng.choice(["bf16", "bf16", "bf16", "fp32"]) if on_card else "fp32"
    run = {
        "model": model, "task": task, "method": method(rng), "precision": precision,
        "data": {"max_length": rng.choice([64, 100, 256, 512, 777, 1024, 2048] if on_card else [16, 33, 64, 128])},
        # A pair is never divided.
        "batch": {"sequences": 2 * rng.choice([1, 2, 3, 4, 6, 8, 16] if on_card else [1, 2, 3])},
        "optimizer": optimizer(rng, precision),
        "seed": rng.randrange(1 << 30),
    }
    if on_card and precision == "fp32":
        # Without tensor cores attention over long sequences takes many times longer, and the card is shared.
        run["data"]["max_length"] = min(run["data"]["max_length"], 512)
        run["batch"]["sequences"] = min(run["batch"]["sequences"], 8)
    if rng.random() < 0.2:
        run["mode"] = "eager"
    if rng.random() < 0.2:
        run["clip"] = "none"
    # Only what adapters leave as it is can be stored in few bits.
    if "lora" in run["method"] and rng.random() < 0.5:
        run["base"] = rng.choice(["nf4", "int8", "fp8", "auto"])
    if trains:
        # Saved at the end: small enough that the disk is not what is tested.
        model["hidden_size"], model["num_hidden_layers"] = min(model["hidden_size"], 768), min(model["num_hidden_layers"], 6)
        model["vocab_size"] = max(model["vocab_size"] % 40000, rows.VOCABULARY)
        run["data"] |= {"train": str(data / rows.FILES[task]), "tokenizer": str(data / "tokenizer"), "overlong": "truncate",
                        "max_length": min(run["data"]["max_length"], 256),
                        "mode": ["cached", "streaming"][number // TRAIN_EVERY % 2]}
        run["data"] |= {"eval_split": 0.05} if rng.random() < 0.5 else {}
        run["data"] |= {"buffer": "8MiB"} if run["data"]["mode"] == "streaming" and rng.random() < 0.7 else {}
    share = rng.choice([0.0, rng.random() ** 2, rng.random()])
    # Where nothing is rebuilt, values kept in eight bits are what fits.
    if "lora" in run["method"] and rng.random() < 0.25:
        run["plan"] = {"keep": "fp8", "recompute": {}}
    return Case(number, run, trains, share)


class TooLarge(Exception):
    """Not even the smallest plan fits under the ceiling."""


@dataclass
class Planner:
    """Plans cases without touching the card: for one of its name, corrected by what differs."""

    device: str
    # What driver and libraries take of this card beyond what they take of one by its name.
    beside_bytes: int = 0

    @staticmethod
    def of(bench: Bench, card: Optional[dict]) -> "Planner":
        if not card:
            return Planner(bench.device)
        file = bench.write("random-planner", first_start.tiny(64, "bf16"))
        here, named = (bench.plimsoll("plan", file, "--json", device=device) for device in (bench.device, card["name"]))
        if named.code != 0:
            say(f"no card of the name {card['name']} is known: {bench.device} itself plans for every case")
            return Planner(bench.device)
        context = lambda said: said.json()["gpu"]["categories"]["context"]
        return Planner(card["name"], context(here) - context(named))

    def ends(self, bench: Bench, file: Path, ceiling_bytes: int) -> tuple:
        """Bytes of the smallest and of the fastest plan under the ceiling."""
        said = bench.plimsoll("plan", file, *bench.budget(ceiling_bytes), "--json", device=self.device)
        if said.code == FITS_NOT:
            raise TooLarge
        if said.code != 0:
            raise RuntimeError(f"plan: {said.error()}")
        report = said.json()
        planned = report[bench.memory]["planned_bytes"] + self.beside_bytes
        ways = [way[f"{bench.memory}_bytes"] + self.beside_bytes for way in report["alternatives"]]
        return min(ways), planned


def budget_of(bench: Bench, case: Case, file: Path, planner: Planner, ceiling_bytes: int) -> int:
    low, high = planner.ends(bench, file, ceiling_bytes)
    if low > high:
        raise RuntimeError(f"the smallest plan takes {low} bytes, another one {high}")
    budget = int(low + case.share * (high - low))
    # What a process takes besides the arena differs by some pages from run to run on the host.
    return -(-budget // MIB) * MIB + (0 if bench.on_card else 2 * MIB)


def smallest_that_works(said: Said, memory: str) -> Optional[int]:
    """The budget that a refusal names."""
    found = re.search(rf"the smallest budget that works is --{memory} (\d+)MiB", said.stderr)
    return int(found.group(1)) * MIB if said.code == FITS_NOT and found else None


def execute(bench: Bench, case: Case, file: Path, budget_bytes: Optional[int]) -> Said:
    limit = bench.budget(budget_bytes) if budget_bytes is not None else []
    if not case.trains:
        return bench.plimsoll("bench", file, *limit, "--steps", BENCH_STEPS, "--json")
    out = file.with_suffix("")
    cache = ["--set", f"data.cache={out}-cache"] if case.run["data"]["mode"] == "cached" else []
    return bench.plimsoll("train", file, *limit, *cache, "--steps", TRAIN_STEPS, "--out", out, "--json", "--quiet")


def within_budget(bench: Bench, case: Case, file: Path, gate: Gate, budget: Optional[int], record: dict) -> Said:
    """Runs the case; once more with the budget that a refusal names, if that is about what was planned."""
    with gate.inside(budget or 0):
        said = execute(bench, case, file, budget)
    named = smallest_that_works(said, bench.memory)
    if budget is None or named is None or not budget < named <= budget + max(SHORT_BYTES, SHORT_SHARE * budget):
        return said
    record["refused_bytes"], record["budget_bytes"] = budget, named
    with gate.inside(named):
        return execute(bench, case, file, named)


def one(bench: Bench, seed: int, case: Case, gate: Gate, planner: Planner, ceiling_bytes: int) -> dict:
    """The record of one case: its report, what its parts took, and what is wrong with it."""
    file = bench.write(f"random-{seed}-{case.number}", case.run)
    record = {"seed": seed, "number": case.number, "kind": "train" if case.trains else "bench", "run": case.run, "why": ""}
    began = time.monotonic()
    try:
        # Planning knows nothing of rows, which on the CPU are part of the budget.
        bounded = bench.on_card or not case.trains
        record["budget_bytes"] = budget_of(bench, case, file, planner, ceiling_bytes) if bounded else None
        record["plan_s"] = time.monotonic() - began
        said = within_budget(bench, case, file, gate, record["budget_bytes"], record)
        record["run_s"] = said.seconds
        if said.code != 0:
            record["why"] = said.error()
            # Whether a fault comes back says where to look for it.
            again = within_budget(bench, case, file, gate, record["budget_bytes"], {})
            record["why"] += f"; once more: {again.error() if again.code != 0 else 'passed'}"
        else:
            report = said.json()
            record["report"] = report
            record["why"] = overrun(report, record["budget_bytes"], bench.memory)
            if not math.isfinite(report["loss_last"]):
                record["why"] += f" the loss is {report['loss_last']}"
    except TooLarge:
        record["kind"] = "too large"
    except Exception as error:
        record["why"] = f"{type(error).__name__}: {error}"[:400]
    finally:
        for left in bench.scratch.glob(f"{file.stem}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    return record


def sweep(bench: Bench, seeds: list, seconds: float, workers: int, first: int = 0, cases: Optional[int] = None) -> list:
    """Cases of every seed in turn, one after another in each of the workers, until the time is up."""
    end = time.monotonic() + seconds
    data = rows.make(bench)
    capacity, ceiling = sys.maxsize, CEILING_BYTES[bench.memory]
    card = card_memory(bench.device) if bench.on_card else None
    if card:
        capacity = card["free_bytes"] - SPARED_BYTES
        ceiling = min(ceiling, capacity // 2)
    gate, planner, lock, records = Gate(capacity), Planner.of(bench, card), threading.Lock(), []
    last = first + cases if cases is not None else sys.maxsize
    to_do = ((seed, number) for number in range(first, last) for seed in seeds)

    def work() -> None:
        while time.monotonic() < end and bench.clock.left_s() > 0:
            with lock:
                seed, number = next(to_do, (None, None))
            if number is None:
                return
            record = one(bench, seed, draw(seed, number, bench.on_card, data), gate, planner, ceiling)
            if bench.clock.left_s() <= 0:
                # Cut off by the limit, which says nothing about the program.
                return
            with lock:
                records.append(record)
                if record["why"]:
                    say(f"FAILED  case {seed}/{number}: {record['why']} {json.dumps(record['run'])}")
                elif len(records) % 50 == 0:
                    say(f"{len(records)} random cases, {sum(bool(r['why']) for r in records)} failed")

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(records, key=lambda record: (record["seed"], record["number"]))


def spread(ratios: list) -> dict:
    ratios = sorted(ratios)
    at = lambda share: ratios[round(share * (len(ratios) - 1))] if ratios else None
    return {"runs": len(ratios), "least": at(0), "low": at(0.05), "median": at(0.5), "high": at(0.95), "most": at(1),
            "above": sum(ratio > 1 for ratio in ratios)}


def ratios_of(records: list, memory: str, kind: Optional[str] = None, planned_min: int = 1) -> list:
    chosen = [r["report"][memory] for r in records if "report" in r and kind in (None, r["kind"])]
    return [m["used_bytes"] / m["planned_bytes"] for m in chosen if m["planned_bytes"] >= planned_min]


def summed_up(records: list, on_card: bool) -> list:
    """The checks over all cases."""
    failed = [r for r in records if r["why"]]
    named = "; ".join(f"{r['seed']}/{r['number']}: {r['why']}" for r in failed[:3])
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    every = Check("every run succeeds within plan and budget", not failed and bool(records),
                  f"{len(failed)} of {len(records)}: {named}{more}"[:900], {"runs": len(records)})
    checks = [every if failed or not records else Check(every.name, True, "", every.figures)]
    if on_card:
        card = spread(ratios_of(records, "gpu"))
        checks.append(Check("card used / planned", card["above"] == 0, f"{card['above']} above", card))
    for kind in ("bench", "train"):
        host = spread(ratios_of(records, "host", kind))
        checks.append(Check(f"host used / planned, {kind}", host["above"] == 0, f"{host['above']} above", host))
    benched = ratios_of(records, "host", "bench", HOST_COUNTED_BYTES)
    near = sum(ratio >= HOST_USED_MIN for ratio in benched)
    share = near / max(1, len(benched))
    name = f"host used ≥ {HOST_USED_MIN} × planned in {HOST_SHARE_MIN:.0%} of bench from {HOST_COUNTED_BYTES // MIB} MiB on"
    checks.append(Check(name, share >= HOST_SHARE_MIN or not benched, f"in {share:.1%}", {"runs": near}))
    for kind in ("bench", "train"):
        times = [r["report"] for r in records if "report" in r and r["kind"] == kind]
        predicted = spread([t["predicted_step_ms"] / t["step_ms"] for t in times if t["step_ms"]])
        predicted.pop("above")
        checks.append(Check(f"predicted / measured time, {kind} (reported only)", True, "", predicted))
    return checks


def enough(records: list, least: int) -> Check:
    """That there were as many runs as asked for, trained ones of both kinds among them."""
    done = [r for r in records if "report" in r]
    modes = [r["run"]["data"]["mode"] for r in done if r["kind"] == "train"]
    trained = math.ceil(TRAINED_SHARE_MIN * least)
    why = "" if len(done) >= least else f"only {len(done)} in the time there was"
    for mode in ("cached", "streaming"):
        if modes.count(mode) < trained:
            why = why or f"only {modes.count(mode)} trained on {mode} rows"
    return Check(f"{least:,} runs, at least {trained} trained on cached and as many on streamed rows", not why, why,
                 {"runs": len(done)})


def kinds(records: list) -> str:
    count = lambda kind: sum(r["kind"] == kind for r in records)
    rows_by = lambda mode: sum(r["kind"] == "train" and r["run"]["data"]["mode"] == mode for r in records)
    refused = sum("refused_bytes" in r for r in records)
    median = lambda key: statistics.median([r[key] for r in records if key in r] or [0])
    return (f"{count('bench')} of bench, {rows_by('cached')} of train on cached and {rows_by('streaming')} on streamed "
            f"rows, {count('too large')} too large; {refused} were refused and ran within the budget that the refusal "
            f"named. Median of a case: {median('plan_s'):.2f} s to plan, {median('run_s'):.2f} s to run")


def stage_of(bench: Bench, records: list, seeds: list, workers: int, least: int) -> Stage:
    stage = Stage("random budgets", COLUMNS, raw=records)
    stage.checks = summed_up(records, bench.on_card) + ([enough(records, least)] if least else [])
    stage.notes.append(f"Seeds {', '.join(map(str, seeds))}, {workers} cases at a time: {kinds(records)}.")
    return stage


def workers_of(bench: Bench) -> int:
    """How many cases go side by side where nobody says."""
    cores = os.cpu_count() or 1
    return min(WORKERS_MAX, int(WORKERS_PER_CORE * cores)) if bench.on_card else min(8, cores)


def run(bench: Bench, seeds: list, seconds: float, workers: int, least: int = 0) -> Stage:
    return stage_of(bench, sweep(bench, seeds, seconds, workers), seeds, workers, least)


def main() -> int:
    parser = argparse.ArgumentParser(description="Random models, methods and budgets against their plans")
    parser.add_argument("--program", type=Path, required=True, help="the binary")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--workers", type=int, help="cases side by side (default: 1.5 for each core on a card, 24 at most)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, help="so many cases of each seed at most")
    parser.add_argument("--least", type=int, default=0, metavar="N", help="fail with fewer runs")
    parser.add_argument("--out", type=Path, help="write all records as JSON")
    arguments = parser.parse_args()
    from table import stage_table

    with tempfile.TemporaryDirectory(prefix="plimsoll-card-") as scratch:
        clock = Clock(arguments.seconds + 150)
        bench = Bench(arguments.program.resolve(), Path(), arguments.device, clock, Path(scratch), os.cpu_count() or 1)
        workers = arguments.workers or workers_of(bench)
        try:
            first = first_start.run(bench)
            records = sweep(bench, arguments.seed, arguments.seconds, workers, arguments.first, arguments.cases)
        finally:
            end_all()
        stage = stage_of(bench, records, arguments.seed, workers, arguments.least)
    if arguments.out:
        arguments.out.write_text(json.dumps(stage.raw))
    print(stage_table(first.as_json()), stage_table(stage.as_json()), sep="\n")
    return 0 if all(check.passed for check in first.checks + stage.checks) else 1


if __name__ == "__main__":
    sys.exit(main())
