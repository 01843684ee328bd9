# SPDX-License-Identifier: BSD-3-Clause
"""The gate of benchmarks/learn/layouts: which curves it lets pass. Its modules for plots and HDF5 are not needed.

usage: layouts_gate_test.py SOURCE
"""
import importlib.machinery
import importlib.util
import math
import sys
import types
from pathlib import Path

for name in ("h5py", "matplotlib"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["matplotlib"].use = lambda backend: None
sys.modules["matplotlib"].pyplot = None
loader = importlib.machinery.SourceFileLoader("layouts", str(Path(sys.argv[1]) / "benchmarks" / "learn" / "layouts"))
sys.dont_write_bytecode = True
layouts = importlib.util.module_from_spec(importlib.util.spec_from_loader("layouts", loader))
loader.exec_module(layouts)


def passes(curve):
    return layouts.is_close(layouts.deviations(curve, [2.0, 2.0, 2.0]))


assert passes([2.0, 2.019, 1.981])
assert not passes([2.0, 2.03, 2.0])
assert not passes([2.0, 1.97, 2.0])
for bad in (math.nan, math.inf, -math.inf):
    for place in range(3):
        curve = [2.0, 2.0, 2.0]
        curve[place] = bad
        assert not passes(curve), curve
try:
    passes([2.0, 2.0])
    raise SystemExit("a curve that ends early passes")
except ValueError:
    pass
