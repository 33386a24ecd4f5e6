"""One micro-batch size and one number of loss chunks: the same losses to the last bit, whatever the budget and the mode."""

import json
from functools import partial
from typing import NamedTuple

from program import GIB, Bench, Check, Said, Stage, say, side_by_side

COLUMNS = [["runs", "runs", "count"], ["plans", "plans", "count"], ["least GiB", "lowest_bytes", "gib"],
           ["most GiB", "highest_bytes", "gib"], ["loss", "loss", "loss"]]
STEPS = 4
# Shares of the way from the smallest plan to the one without a tight budget.
SHARES = [0.0, 0.25, 0.5, 1.0]


def models(on_card: bool) -> dict:
    """Small enough to take seconds, large enough that budgets lead to different plans."""
    size, layers, length, vocabulary = (1024, 8, 512, 32000) if on_card else (256, 6, 192, 333)
    shape = {"hidden_size": size, "num_hidden_layers": layers, "num_attention_heads": 16 if on_card else 4,
             "num_key_value_heads": 4 if on_card else 2, "intermediate_size": 3 * size, "vocab_size": vocabulary,
             "init": "random"}
    precision = "bf16" if on_card else "fp32"

    def made(family: str, task: str, method, pinned: dict, precision: str = precision) -> dict:
        return {"model": {"family": family, **shape}, "task": task, "method": method, "precision": precision,
                "data": {"max_length": length}, "batch": {"sequences": 8}, "plan": pinned}

    both = {"micro_batch_tokens": 2 * length, "loss_chunks": 2}
    lora = {"lora": {"r": 8, "dropout": 0.1}}
    return {
        "llama full, pretrain": made("llama", "pretrain", "full", both),
        "qwen2 LoRA with dropout, sft": made("qwen2", "sft", lora, both),
        # A score per sequence needs no chunks.
        "mistral LoRA with dropout, reward": made("mistral", "reward", lora, {"micro_batch_tokens": 2 * length}),
        "qwen3 full, sft, float32": made("qwen3", "sft", "full", both, "fp32"),
    }


def planned(said: Said, memory: str) -> int:
    if said.code != 0:
        raise RuntimeError(f"plan: {said.error()}")
    return said.json()[memory]["planned_bytes"]


class Ran(NamedTuple):
    """A run and the plan for it."""

    model: str
    mode: str
    bench: Said
    plan: Said


def compare(name: str, runs: list, memory: str) -> Check:
    """All losses of one model."""
    failures = [f"{run.mode}: {said.error()}" for run in runs for said in (run.bench, run.plan) if said.code != 0]
    if failures:
        return Check(name, False, "; ".join(failures)[:400])
    reports = [(run.mode, run.bench.json()) for run in runs]
    losses = {(report["loss_first"], report["loss_last"]) for _, report in reports}
    # The layout and what is recomputed; sizes of the process differ from run to run by themselves.
    plans = {(plan["layout"]["arena_bytes"], json.dumps(plan["recompute"])) for plan in (run.plan.json() for run in runs)}
    sizes = [report[memory]["planned_bytes"] for _, report in reports]
    figures = {"runs": len(reports), "plans": len(plans), "lowest_bytes": min(sizes), "highest_bytes": max(sizes),
               "loss": sorted({last for _, last in losses})}
    why = ""
    if len(losses) > 1:
        why = "losses differ: " + ", ".join(f"{mode} {r['loss_last']!r} at {r[memory]['planned_bytes'] / GIB:.3f} GiB"
                                            for mode, r in reports)
    elif len(plans) < 3:
        why = f"budgets led to only {len(plans)} different plans, so little was compared"
    return Check(name, not why, why, figures)


def run(bench: Bench) -> Stage:
    stage = Stage("same bits", COLUMNS)
    files = {name: bench.write(f"same-bits-{i}", run) for i, (name, run) in enumerate(models(bench.on_card).items())}
    jobs, free = [], f"--{bench.memory}"
    for file in files.values():
        jobs.append(partial(bench.plimsoll, "plan", file, "--goal", "lowest", "--json"))
        jobs.append(partial(bench.plimsoll, "plan", file, free, "40GiB" if bench.on_card else "4GiB", "--json"))
    plans = side_by_side(jobs, bench.workers)
    jobs, planning, owners = [], [], []
    for (name, file), lowest, highest in zip(files.items(), plans[0::2], plans[1::2]):
        try:
            low, high = planned(lowest, bench.memory), planned(highest, bench.memory)
        except RuntimeError as error:
            stage.checks.append(Check(name, False, str(error)))
            continue
        # What a process takes besides the arena differs by some pages from run to run on the host.
        slack = 0 if bench.on_card else 2 << 20
        budgets = [(int(low + share * (high - low)) + slack, "compiled") for share in SHARES]
        budgets += [(budgets[0][0], "eager"), (budgets[-1][0], "eager")]
        for budget, mode in budgets:
            owners.append((name, mode))
            flags = [*bench.budget(budget), "--mode", mode, "--json"]
            jobs.append(partial(bench.plimsoll, "bench", file, *flags, "--steps", STEPS))
            planning.append(partial(bench.plimsoll, "plan", file, *flags))
    ended, plans = side_by_side(jobs, bench.workers), side_by_side(planning, bench.workers)
    runs = [Ran(*owner, said, plan) for owner, said, plan in zip(owners, ended, plans)]
    for name in dict.fromkeys(run.model for run in runs):
        check = compare(name, [run for run in runs if run.model == name], bench.memory)
        say(f"{'passed' if check.passed else 'FAILED'}  same bits, {name} {check.why}")
        stage.checks.append(check)
    return stage
