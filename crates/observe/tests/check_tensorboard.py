"""Checks event files with TensorBoard's own reader. Needs `pip install tensorboard`.

    python3 check_tensorboard.py RUN_DIR     every curve must have exactly the points of the folder's metrics.jsonl
    python3 check_tensorboard.py --golden    prints the bytes that src/tensorboard/golden.hex holds
"""
import json, math, pathlib, struct, sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c


def golden():
    value = summary_pb2.Summary.Value
    events = [
        event_pb2.Event(wall_time=1.5e9, file_version="brain.Event:2"),
        event_pb2.Event(wall_time=1.5e9, step=7, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START)),
        event_pb2.Event(wall_time=1700000000.25, step=300, summary=summary_pb2.Summary(
            value=[value(tag="train/loss", simple_value=2.5), value(tag="eval/loss", simple_value=-0.125)])),
    ]
    out = b""
    for event in events:
        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        out += length + struct.pack("<I", masked_crc32c(length)) + content + struct.pack("<I", masked_crc32c(content))
    print(out.hex())


def check(folder):
    curves = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        values = {"eval/loss": row["eval"]["loss"]} if "eval" in row else {
            "train/loss": row["loss"], "train/lr": row["lr"], "speed/step_ms": row["step_ms"]}
        for tag, number in values.items():
            curves.setdefault(tag, {})[row["step"]] = math.nan if number is None else number
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    for tag, points in curves.items():
        found = {point.step: point.value for point in reader.Scalars(tag)}
        assert found.keys() == points.keys(), (tag, sorted(found.keys() ^ points.keys())[:5])
        for step, number in points.items():
            as_read = struct.unpack("<f", struct.pack("<f", number))[0]
            assert found[step] == as_read or math.isnan(as_read), (tag, step, found[step], number)
        print(f"{tag}: {len(points)} points")


if __name__ == "__main__":
    golden() if sys.argv[1] == "--golden" else check(pathlib.Path(sys.argv[1]))
