# SPDX-License-Identifier: BSD-3-Clause
"""Computes study.csv of the smoke test anew: from `mylos inspect --csv`, or by h5py where it is installed.

usage: check.py OUT MYLOS WARMUP

Medians and quartiles are computed here from sorted values, not by the functions that scripts/study uses. Numbers agree
to 1e-12, bytes are those of `mylos plan`.
"""
import csv
import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

os.environ["HDF5_USE_FILE_LOCKING"] = "FALSE"
try:
    import h5py
except ImportError:
    h5py = None

out, mylos, warmup = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
compared = 0


def read(run, table):
    """Column -> values, NaN where a row has none."""
    if h5py is not None:
        with h5py.File(run / "metrics.h5", "r") as file:
            rows = int(file[table]["num_rows"][0])
            return {name: [float(v) for v in file[table][name][:rows]] for name in file[table] if name != "num_rows"}
    lines = subprocess.run([mylos, "inspect", run, f"--csv={table}"], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    names, *rows = [line.split(",") for line in lines]
    return {name: [float(row[i] or "nan") for row in rows] for i, name in enumerate(names)}


def quantile(values, share):
    """Linear between the sorted values, of which the first is at 0 and the last at 1."""
    values = sorted(values)
    place = share * (len(values) - 1)
    below = math.floor(place)
    return values[below] + (place - below) * (values[min(below + 1, len(values) - 1)] - values[below])


def agree(text, value, what):
    global compared
    compared += 1
    assert abs(float(text) - value) <= 1e-12 * abs(value), (what, text, value)


with open(out / "study.csv", newline="") as file:
    rows = {(row["layout"], int(row["ranks"])): row for row in csv.DictReader(file)}
states = {key: (row["state"], row["code"]) for key, row in rows.items()}
assert states == {("ddp", 1): ("done", "0"), ("zero3", 1): ("done", "0"), ("tensor2", 1): ("refused", "2"),
                  ("ddp", 2): ("done", "0"), ("zero3", 2): ("done", "0"), ("tensor2", 2): ("done", "0"),
                  ("diverges", 2): ("failed", "17")}, states
assert "parallel" in rows["tensor2", 1]["reason"], rows["tensor2", 1]["reason"]
assert "not applied" in rows["diverges", 2]["reason"] or "finite" in rows["diverges", 2]["reason"], rows["diverges", 2]

groups = ("time_", "rank_time_", "idle_time_", "wait_", "payload_", "memory_", "communication_")
for (layout, ranks), row in rows.items():
    if row["state"] != "done":
        continue
    steps, evaluations, launches = (read(Path(row["run"]), table) for table in ("steps", "eval", "launches"))
    timed = [i for i, step in enumerate(steps["step"]) if step > warmup]
    assert (int(row["steps"]), int(row["timed_steps"])) == (12, 9) == (len(steps["step"]), len(timed))
    for name, values in steps.items():
        own = [values[i] for i in timed if not math.isnan(values[i])]
        if own and (name.startswith(groups) or name in ("tokens_per_second", "mfu", "hfu")):
            agree(row[name], max(values) if name == "memory_peak_max" else quantile(own, 0.5), name)
    rates = [steps["tokens_per_second"][i] for i in timed]
    agree(row["tokens_per_second_q1"], quantile(rates, 0.25), "q1")
    agree(row["tokens_per_second_q3"], quantile(rates, 0.75), "q3")
    agree(row["loss"], steps["loss"][-1], "loss")
    agree(row["eval_loss"], evaluations["loss"][-1], "eval_loss")
    agree(row["threads"], launches["threads"][-1], "threads")
    base = float(rows["ddp", 1]["tokens_per_second"])
    agree(row["efficiency"], quantile(rates, 0.5) / ranks / base, "efficiency")

    keys = [word for word in shlex.split(row["command"]) if word.startswith("--") and not word.startswith("--progress")]
    plan = json.loads(subprocess.run([mylos, "plan", "study.deck", "--json", f"--ranks={ranks}", *keys], check=True,
                                     capture_output=True, text=True).stdout)
    planned = {name.replace(" ", "_"): float(value) for name, value in plan["payload"].items()} if ranks > 1 else {}
    for beginning in ("payload_", "planned_payload_"):
        found = {name.removeprefix(beginning): float(row[name]) for name in row if name.startswith(beginning)
                 and row[name] and name != "payload_world_all_gather"}
        assert found == planned, (layout, ranks, beginning, found, planned)
    assert row["bytes_as_planned"] == "yes"
    assert float(row["planned_memory_total"]) == plan["memory"]["total"]

page = (out / "study.html").read_text()
for words in ("Failed or refused", "diverges", "Efficiency", "Loss over seconds", "Time of a step by phase"):
    assert words in page, words
assert "NOT THE SAME" not in page and "http" not in page.replace("http://www.w3.org", ""), "differences, or a network"
print(f"{compared} numbers agree, {'by h5py' if h5py else 'without h5py'}")
