"""One micro-batch size and one number of loss chunks: the same losses to the last bit, whatever the budget and the mode."""

from functools import partial

from program import GIB, Bench, Check, Said, Stage, say, side_by_side

COLUMNS = [["runs", "runs", "count"], ["plans", "plans", "count"], ["least GiB", "lowest_bytes", "gib"],
           ["most GiB", "highest_bytes", "gib"], ["loss", "loss", "loss"]]
STEPS = 4
# Shares of the way from the smallest plan to the one without a tight budget.
SHARES = [0.0, 0.25, 0.5, 1.0]


def models(on_card: bool) -> dict:
    """Small enough to take seconds, large enough that budgets lead to different plans."""
    size, layers, length, vocabulary = (1024, 8, 512, 32000) if on_card else (96, 4, 64, 333)
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


def compare(name: str, ended: list, memory: str) -> Check:
    """All losses of one model against the first."""
    failures = [f"{mode}: {said.error()}" for _, mode, said in ended if said.code != 0]
    if failures:
        return Check(name, False, "; ".join(failures)[:400])
    reports = [(mode, said.json()) for _, mode, said in ended]
    losses = {(report["loss_first"], report["loss_last"]) for _, report in reports}
    plans = sorted({report[memory]["planned_bytes"] for _, report in reports})
    figures = {"runs": len(reports), "plans": len(plans), "lowest_bytes": plans[0], "highest_bytes": plans[-1],
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
    jobs, owners = [], []
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
            jobs.append(partial(bench.plimsoll, "bench", file, *bench.budget(budget), "--mode", mode,
                                "--steps", STEPS, "--json"))
    ended = side_by_side(jobs, bench.workers)
    for name in dict.fromkeys(name for name, _ in owners):
        check = compare(name, [(n, mode, said) for (n, mode), said in zip(owners, ended) if n == name], bench.memory)
        say(f"{'passed' if check.passed else 'FAILED'}  same bits, {name} {check.why}")
        stage.checks.append(check)
    return stage
