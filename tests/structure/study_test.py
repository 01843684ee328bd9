# SPDX-License-Identifier: BSD-3-Clause
"""scripts/study with a stand-in for mylos: layouts and their errors, resumption, exit codes, numbers, the page.

usage: study_test.py SOURCE
"""
import contextlib
import csv
import fcntl
import html.parser
import importlib.machinery
import importlib.util
import io
import math
import os
import shutil
import statistics
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

SOURCE = Path(sys.argv.pop()).resolve()
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("study", str(SOURCE / "scripts" / "study"))
study = importlib.util.module_from_spec(importlib.util.spec_from_loader("study", loader))
loader.exec_module(study)
page = study.study_page

# Plans, trains and inspects without a model. A run takes its rates from its layout; `fault.code` is its exit code.
STAND_IN = r'''
import json, os, sys
words = sys.argv[1:]
keys = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
if words[0] == "plan" and "ranks" not in keys:  # a run
    ranks = int(words[1].split("-r")[1].split("/")[0])
    print(f"{ranks} ranks\n  plan run\nmemory_parameters  50  40  +25 %")
    print(f"payload_data_all_reduce  {8 * ranks}  - not recorded" if ranks > 1 else "")
elif words[0] == "plan":
    ranks = int(keys["ranks"])
    if ranks % int(keys.get("parallel.tensor", 1)):
        sys.exit(print("warning: w\nmylos: tensor <must> divide the ranks", file=sys.stderr) or 2)
    print(json.dumps({"memory": {"total": 50}, "model": {"parameters": 10.0},
                      "run": {"tokens_per_step": 64, "steps": 6.0}}))
elif words[0] == "inspect":
    if keys["csv"] not in ("steps", "launches"):
        sys.exit(65)
    print(open(f"{words[1]}/{keys['csv']}.csv").read(), end="")
else:  # RANKS MYLOS train DECK ...: the launcher
    ranks, run, code = int(words[0]), keys["run.dir"], int(keys.get("fault.code", 0))
    with open(os.environ["STARTS"], "a") as file:
        print(ranks, run, keys.get("train.global_batch", ""), file=file)
    os.makedirs(run + "/checkpoints/step_000006")
    with open(run + "/status.json", "w") as file:
        json.dump({"state": "failed" if code else "done", "exit_code": code, "message": "why" if code else ""}, file)
    payload = 8 * ranks + int(keys.get("fault.bytes", 0))
    with open(run + "/steps.csv", "w") as file:
        file.write("step,tokens_per_second,rank_time_max,time_forward,time_step,loss,payload_data_all_reduce,"
                   "payload_world_all_gather,wait_data,memory_parameters,memory_peak_max\n")
        for step in range(1, 7):
            file.write(f"{step},{100 * ranks + step},0.{step},0.0{step},0.{step},{1 / step},"
                       f"{payload if ranks > 1 else 0},72,{'' if step % 2 else 0.25},40,{60 + step}\n")
    with open(run + "/launches.csv", "w") as file:
        file.write("step,threads,ranks_per_node,peak_tflops\n0,1,0,0.1\n")
    sys.exit(code)
'''


class Links(html.parser.HTMLParser):
    """What a page would load or run."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.depth = 0

    def handle_starttag(self, tag, attributes):
        self.found += [tag] if tag in ("script", "link", "img", "iframe") else []
        self.found += [name for name, _ in attributes if name in ("src", "href") or name.startswith("on")]


class Base(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        Path("mylos").write_text(f"#!{sys.executable} -IS{STAND_IN}")
        Path("mylos").chmod(0o755)
        Path("x.deck").write_text('[train]\nsteps = 6\nglobal_batch = 8 # sequences\n[data]\ntrain = "a # b"\n')
        Path("l").write_text("[a]\nparallel.exchange = ddp\n[b]\nparallel.tensor = 2\n")
        os.environ["STARTS"] = str(self.folder / "starts")

    def run_study(self, *words, ranks="1 2", layouts="l"):
        """Exit code, output and error output."""
        arguments = ["study", "x.deck", "out", f"--ranks={ranks}", *([f"--layouts={layouts}"] if layouts else []),
                     "--mylos=./mylos", f"--launcher={self.folder / 'mylos'}", *words]
        output, errors = io.StringIO(), io.StringIO()
        with mock.patch.object(sys, "argv", arguments), mock.patch.object(study.signal, "signal"), \
                contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                study.main()
            except SystemExit as end:
                return end.code, output.getvalue(), errors.getvalue()

    def starts(self):
        return Path("starts").read_text().splitlines() if Path("starts").exists() else []

    def rows(self):
        with open("out/study.csv", newline="") as file:
            return list(csv.DictReader(file))


class Arguments(Base):
    def refused(self, message, *words, **others):
        code, _, errors = self.run_study(*words, **others)
        self.assertEqual(code, 2, errors)
        self.assertIn(message, errors)
        self.assertEqual(self.starts(), [])

    def test_wrong_usage(self):
        for ranks in ("", "0", "two", "1 -2", "1.5"):
            self.refused("numbers of ranks", ranks=ranks)
        self.refused("invalid choice", "--mode=sideways")
        self.refused("at least 1", "--rounds=0")
        self.refused("at least 0", "--warmup=-1")
        self.refused("leaves none of the 6 steps", "--warmup=6")
        self.refused("neither an option", "--roundz=3")
        self.refused("neither an option", "--train.steps")
        self.refused("is set by the study", "--run.dir=x")
        self.refused("given twice", "--train.steps=1", "--train.steps=2")
        self.refused("in one place", "--parallel.tensor=1")
        self.refused("--launcher is empty", "--launcher=")
        self.refused("is no program", "--mylos=./nothing")
        self.refused("--layouts nothing", layouts="nothing")
        self.refused("batch of a on 4 ranks would be 32 / 3", "--mode=weak", ranks="3 4")
        Path("out").write_text("")
        self.refused("is not a folder")
        Path("out").unlink()
        Path("out").mkdir()
        Path("out/other").write_text("")
        self.refused("holds other files")
        Path("x.deck").unlink()
        self.refused("does not exist")

    def test_every_problem_of_layouts_has_its_line(self):
        Path("bad").write_text("parallel.tensor = 2\n[a b]\n[c]\nranks = x\nbatch_per_group = 1 2\nnothing\n"
                               "tensor = 2\nrun.dir = x\na.b = 1\na.b = 2\n[c]\n")
        code, _, errors = self.run_study(layouts="bad")
        self.assertEqual(code, 2)
        lines = [line.removeprefix("study: ").split(":")[1] for line in errors.splitlines()]
        self.assertEqual(lines, ["1", "2", "4", "5", "6", "7", "8", "10", "11"])
        Path("bad").write_text("# nothing\n")
        self.refused("has no layout", layouts="bad")

    def test_layouts(self):
        Path("l").write_text('[a] # first\nranks = 2 4+\nx.y = "1 # 2" # three\nbatch_per_group = 3\n')
        self.assertEqual(study.read_layouts("l"),
                         {"a": {"keys": {"x.y": "1 # 2"}, "ranks": ["2", "4+"], "batch_per_group": 3}})
        allowed = [ranks for ranks in range(1, 7) if study.allows(study.read_layouts("l")["a"], ranks)]
        self.assertEqual(allowed, [2, 4, 5, 6])

    def test_the_layouts_of_the_project_are_read(self):
        for path in sorted((SOURCE / "inputs" / "studies").glob("*.layouts")):
            self.assertGreater(len(study.read_layouts(path)), 3, path)


class Runs(Base):
    def test_rows_and_numbers(self):
        code, output, errors = self.run_study("--rounds=2", "--warmup=1")
        self.assertEqual((code, errors), (0, ""), output)
        self.assertEqual([start.split()[1].removeprefix("out/runs/") for start in self.starts()],
                         ["a-r1/1", "a-r2/1", "b-r2/1", "b-r2/2", "a-r2/2", "a-r1/2"])
        rows = {(row["layout"], row["ranks"], row["round"]): row for row in self.rows()}
        self.assertEqual({row["state"] for key, row in rows.items() if key[:2] == ("b", "1")}, {"refused"})
        self.assertEqual(rows["b", "1", "1"]["reason"], "tensor <must> divide the ranks")
        row = rows["a", "2", "1"]
        rates = [202.0, 203.0, 204.0, 205.0, 206.0]
        self.assertEqual(float(row["tokens_per_second"]), statistics.median(rates))
        self.assertEqual((row["tokens_per_second_q1"], row["tokens_per_second_q3"]), ("203", "205"))
        self.assertEqual((row["steps"], row["timed_steps"], row["memory_peak_max"]), ("6", "5", "66"))
        self.assertEqual(float(row["efficiency"]), 204 / 2 / 104)
        self.assertEqual(float(row["wait_data"]), 0.25)
        self.assertEqual(float(row["loss"]), 1 / 6)
        self.assertEqual((row["payload_data_all_reduce"], row["planned_payload_data_all_reduce"]), ("16", "16"))
        self.assertEqual(row["bytes_as_planned"], "yes")
        self.assertEqual((row["global_batch"], row["eval_loss"]), ("8", ""))
        self.assertEqual(list(Path("out").rglob("checkpoints")), [])
        text = Path("out/study.html").read_text()
        links = Links()
        links.feed(text)
        self.assertEqual(links.found, [])
        self.assertIn("tensor &lt;must&gt; divide", text)
        self.assertNotIn("<must>", text)

    def test_the_page_counts_the_layouts_that_have_rows(self):
        Path("l").write_text("[a]\nparallel.exchange = ddp\n[b]\nranks = 4\nparallel.exchange = ddp\n")
        self.run_study("--rounds=1")
        self.assertIn("1 layout on 1 and 2 ranks", " ".join(Path("out/study.html").read_text().split()))

    def test_a_failed_layout_stops_no_other(self):
        Path("l").write_text("[bad]\nfault.code = 17\n[a]\nparallel.exchange = ddp\n")
        code, output, _ = self.run_study("--rounds=1", "--keep")
        self.assertEqual(code, 1, output)
        self.assertEqual([(row["layout"], row["state"], row["code"], row["reason"]) for row in self.rows()],
                         [("bad", "failed", "17", "why"), ("a", "done", "0", "")] * 2)
        self.assertEqual(len(list(Path("out").rglob("step_000006"))), 4)
        self.run_study("--rounds=1")
        self.assertEqual(len(self.starts()), 4)
        self.run_study("--rounds=1", "--retry")
        self.assertEqual([start.split()[1] for start in self.starts()[4:]], ["out/runs/bad-r1/1", "out/runs/bad-r2/1"])

    def test_a_layout_that_runs_nowhere_is_no_success(self):
        code, output, _ = self.run_study("--rounds=1", ranks="1")
        self.assertEqual(code, 1)
        self.assertIn("refused at every number of ranks", output)

    def test_a_launcher_that_is_not_there(self):
        code, _, _ = self.run_study("--rounds=1", "--launcher=./nothing", layouts=None)
        self.assertEqual(code, 1)
        self.assertEqual({(row["code"], row["reason"]) for row in self.rows()},
                         {("127", "./nothing: No such file or directory")})

    def test_a_launcher_that_was_killed(self):
        Path("killed").write_text("#!/bin/sh\nkill -9 $$\n")
        Path("killed").chmod(0o755)
        self.run_study("--rounds=1", "--launcher=./killed", layouts=None, ranks="1")
        self.assertEqual([row["code"] for row in self.rows()], ["137"])

    def test_interrupted_by_the_run(self):
        Path("l").write_text("[a]\nfault.code = 75\n")
        code, output, _ = self.run_study()
        self.assertEqual((code, len(self.starts()), self.rows()), (75, 1, []), output)

    def test_bytes_that_differ_are_loud(self):
        Path("l").write_text("[a]\nfault.bytes = 1\n")
        self.run_study("--rounds=1")
        self.assertEqual([row["bytes_as_planned"] for row in self.rows()], ["yes", "no"])
        text = Path("out/study.html").read_text()
        self.assertIn("NOT THE SAME", text)
        self.assertIn("Bytes are not as planned: a, 2 ranks.", text)

    def test_batches(self):
        self.run_study("--rounds=1", "--mode=weak", layouts=None, ranks="2 4")
        self.assertEqual([start.split()[2] for start in self.starts()], ["8", "16"])
        shutil.rmtree("out")
        Path("l").write_text("[a]\nbatch_per_group = 3\nparallel.tensor = 2\n")
        self.run_study("--rounds=1", ranks="2 8")
        self.assertEqual([start.split()[2] for start in self.starts()[2:]], ["3", "12"])

    def test_dry_run(self):
        code, output, _ = self.run_study("--dry-run")
        self.assertEqual((code, self.starts(), Path("out").exists()), (0, [], False))
        self.assertIn("9 runs in 3 rounds", output)


class Resumption(Base):
    def test_goes_on(self):
        self.run_study("--rounds=1")
        before = len(self.starts())
        Path("out/runs/a-r2/1.json").unlink()  # as if the study had been killed during this run
        self.assertEqual(self.run_study("--rounds=1")[0], 0)
        self.assertEqual([start.split()[1] for start in self.starts()[before:]], ["out/runs/a-r2/1"])
        self.run_study("--rounds=2", ranks="1 2 4")
        self.assertEqual({(row["ranks"], row["round"]) for row in self.rows()},
                         {(ranks, round_) for ranks in "124" for round_ in "12"})
        self.run_study("--rounds=1", ranks="1")
        self.assertEqual(len(self.rows()), 12, "rows that are there stay")

    def test_what_differs_is_said(self):
        self.run_study("--rounds=1")
        before = self.starts()

        def differs(message, *words, **others):
            code, _, errors = self.run_study("--rounds=1", *words, **others)
            self.assertEqual((code, self.starts()), (2, before))
            self.assertIn(message, errors)

        differs("mode: strong there, weak here", "--mode=weak")
        differs("overrides: {} there, {'train.steps': '5'} here", "--train.steps=5")
        differs("warmup: None there, 1 here", "--warmup=1")
        Path("l").write_text("[a]\nparallel.exchange = zero1\n[b]\nparallel.tensor = 2\n")
        differs("layouts: a")
        Path("x.deck").write_text("[train]\nglobal_batch = 4\n")
        differs("the text of the deck")
        Path("out/study.json").write_text("{")
        differs("is damaged")

    def test_weak_scaling_keeps_its_base(self):
        self.run_study("--rounds=1", "--mode=weak", layouts=None, ranks="2 4")
        self.assertIn("cannot go on with fewer",
                      self.run_study("--rounds=1", "--mode=weak", layouts=None, ranks="1 2")[2])
        self.run_study("--rounds=1", "--mode=weak", layouts=None, ranks="8")
        self.assertEqual([start.split()[2] for start in self.starts()], ["8", "16", "32"])

    def test_one_at_a_time(self):
        self.run_study("--rounds=1")
        with open("out/lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.assertIn("is in use by process", self.run_study("--rounds=1")[2])


class Batch(Base):
    def test_sbatch(self):
        Path("bin").mkdir()
        Path("bin/sbatch").write_text('#!/bin/sh\necho "$MYLOS_STUDY" >sent\nfor word; do echo "$word" >>sent; done\n')
        Path("bin/sbatch").chmod(0o755)
        script = SOURCE / "scripts" / "slurm" / "study.sbatch"
        with mock.patch.dict(os.environ, {"PATH": f"bin:{os.environ['PATH']}"}):
            words = ["study", "x.deck", "out", "--ranks", "1 2", "--sbatch", str(script), "--mylos=./mylos"]
            with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(io.StringIO()), \
                    self.assertRaises(SystemExit) as end:
                study.main()
        self.assertEqual(end.exception.code, 0)
        self.assertEqual(Path("sent").read_text().splitlines(),
                         [str(SOURCE / "scripts" / "study"), str(script), "x.deck", "out", "--ranks", "1 2",
                          "--mylos=./mylos", "--launcher=srun --mpi=pmi2 -n"])
        self.assertEqual(self.starts(), [])
        Path("other").write_text("mylos-job\n")
        self.assertIn("runs a study", self.run_study("--sbatch=other")[2])


class Numbers(unittest.TestCase):
    def test_figures(self):
        nan = math.nan
        steps = {"step": [1.0, 2.0, 3.0, 4.0], "tokens_per_second": [9.0, 9.0, 1.0, 4.0], "loss": [3.0, 2.0, 1.0, nan],
                 "wait_data": [nan, 1.0, nan, nan], "memory_parameters": [1.0] * 4, "learning_rate": [1.0] * 4}
        row = study.figures(steps, None)
        self.assertEqual((row["timed_steps"], row["tokens_per_second"], row["loss"]), (2, 2.5, 1.0))
        self.assertEqual((row["tokens_per_second_q1"], row["tokens_per_second_q3"]), (1.75, 3.25))
        self.assertNotIn("wait_data", row)
        self.assertNotIn("learning_rate", row)
        self.assertEqual(study.figures(steps, 3)["tokens_per_second_q1"], 4.0)
        self.assertEqual(study.figures(steps, 4)["timed_steps"], 0)
        self.assertEqual(study.figures({}, None)["timed_steps"], 0)

    def test_cells(self):
        for value, text in ((0.1, "0.1"), (1e22, "1e+22"), (3.0, "3"), (None, ""), (math.nan, ""), (math.inf, "inf"),
                            (7, "7"), ("a", "a")):
            self.assertEqual(study.cell(value), text)

    def test_efficiency_is_of_the_same_round(self):
        def row(layout, ranks, round_, rate):
            return {"layout": layout, "ranks": ranks, "round": round_, "state": "done", "tokens_per_second": rate}

        rows = study.with_efficiency([row("a", 2, 1, 100.0), row("a", 4, 1, 150.0), row("a", 2, 2, 50.0),
                                      row("a", 4, 2, 100.0), row("a", 4, 3, 9.0)])
        self.assertEqual([r.get("efficiency") for r in rows], [1.0, 0.75, 1.0, 1.0, None])

    def test_curves_are_thinned(self):
        points, each = page.thinned(range(1, 1001), [float(i) for i in range(1000)])
        self.assertEqual((each, len(points), points[0], points[-1]), (4, 250, (4, 1.5), (1000, 997.5)))
        self.assertEqual(page.thinned([1, 2, 3], [math.nan, math.inf, 5.0])[0], [(3, 5.0)])

    def test_even_ticks(self):
        from plots import even_ticks
        self.assertEqual(even_ticks(0, 10), [0, 2, 4, 6, 8, 10])
        for low, high in ((0, 1e-9), (3.2, 3.3), (0, 7e12), (-1, 1)):
            self.assertTrue(2 <= len(even_ticks(low, high)) <= 7, (low, high))


unittest.main()
