"""Checks offline runs with W&B's own reader and message classes. Needs `pip install 'wandb<0.20'`: later packages have their
reader in a program of their own.

    python3 check_wandb.py RUN_DIR     every record is read, and every curve has the points of the folder's metrics.jsonl
"""
import json, math, pathlib, sys

import wandb

wandb._set_internal_process()
from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal.datastore import DataStore

GIB = 2**30


def records(path):
    store = DataStore()
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        # What this package does not know would be kept as unknown fields and written again longer than known ones.
        known = wandb_internal_pb2.Record()
        known.CopyFrom(record)
        known.DiscardUnknownFields()
        assert known.SerializeToString() == record.SerializeToString(), record
        yield record


def expected(folder):
    rows = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        line = json.loads(line)
        row = rows.setdefault(line["step"], {})
        if "eval" in line:
            row["eval/loss"] = line["eval"]["loss"]
        elif "loss" in line:
            row.update({"train/loss": line["loss"], "train/lr": line["lr"], "speed/step_ms": line["step_ms"],
                        "memory/host_gib": line["host_rss_bytes"] / GIB})
    return {step: row for step, row in rows.items() if row}


def check(folder):
    [path] = folder.glob("wandb/offline-run-*/run-*.wandb")
    found = list(records(path))
    kinds = [record.WhichOneof("record_type") for record in found]
    assert [record.num for record in found] == list(range(1, len(found) + 1))
    assert kinds[:2] == ["header", "run"] and kinds[-2:] == ["exit", "footer"], kinds[:2] + kinds[-2:]
    assert kinds.count("run") == kinds.count("exit") == 1
    run = found[1].run
    assert path.name == f"run-{run.run_id}.wandb" and path.parent.name.endswith(run.run_id)
    config = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in run.config.update}
    assert "optimizer.lr" in config and "model" in {key.split(".")[0] for key in config}, config
    rows = {}
    for record in found:
        if record.WhichOneof("record_type") == "history":
            row = {item.key: json.loads(item.value_json) for item in record.history.item}
            assert row["_step"] == record.history.step.num and row["_runtime"] >= 0
            assert row["_step"] not in rows, "an update is there once"
            rows[row["_step"]] = row
    wanted = expected(folder)
    assert list(rows) == sorted(wanted), "all updates, in order"
    for step, row in wanted.items():
        for name, number in row.items():
            got = rows[step][name]
            assert got == ("NaN" if number is None else number) or math.isclose(got, number), (step, name, got, number)
    print(f"{path}: project {run.project}, {len(config)} values of configuration, {len(rows)} rows, exit {found[-2].exit.exit_code}")


if __name__ == "__main__":
    check(pathlib.Path(sys.argv[1]))
