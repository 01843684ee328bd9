#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks what the compiler does not: includes between folders, feature tests, the first lines of files, unused aliases.

usage: check_tree.py includes|circles|features|openings|aliases SOURCE_FOLDER
"""

import pathlib
import re
import sys

# Folder -> the folders of the repository that it may include. Folders do not include each other in a cycle.
MAY_INCLUDE = {
    "core": {"core"},
    "parallel": {"parallel", "core"},
    "io": {"io", "core"},
    "backends": {"core"},  # and its own folder
    "app": {"app", "parallel", "io", "core"},
}

# Third-party libraries: the pattern of their headers, and the folders or files that may include them.
LIBRARIES = {
    "Kokkos": (r"Kokkos|impl/Kokkos", {"backends"}),
    "oneDNN": (r"dnnl|oneapi/", {"backends"}),
    "CUDA": (r"cuda|cublas|cudnn|nccl", {"backends"}),
    "hwloc": (r"hwloc", {"core/base/processors.cpp"}),
    "MPI": (r"mpi\.h|mpi\.hpp", {"backends", "io", "app"}),
    "HDF5": (r"hdf5|H5", {"io"}),
    "nlohmann-json": (r"nlohmann/", {"io"}),
    "Boost.Program_options": (r"boost/program_options", {"app"}),
}

# Macros that describe the compiler, the device pass, the platform or the kind of build, not a feature.
PLATFORM_MACROS = {"__SANITIZE_ADDRESS__", "__CUDACC__", "__CUDA_ARCH__", "__HIPCC__", "__linux__", "__x86_64__",
                   "__aarch64__", "NDEBUG", "MYLOS_STATIC"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
ALIAS = re.compile(r"^\s*(?:using\s+(?:[a-z]\w*::)+(\w+);|namespace\s+(\w+)\s*=)", re.MULTILINE)
CONDITION = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b(.*)")


def sources(root, folders):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".hpp", ".cpp"):
                yield folder, path.relative_to(root)


def check_includes(root):
    for folder, path in sources(root, MAY_INCLUDE):
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            bracket, name = match.groups()
            for library, (pattern, allowed) in LIBRARIES.items():
                if re.match(pattern, name) and not {folder, str(path)} & allowed:
                    yield f"{path}:{number}: {folder} must not know {library}: {name}"
            if bracket == "<":
                continue
            if not (root / name).is_file():
                yield f"{path}:{number}: not a path from the repository root: {name}"
                continue
            target = name.split("/")[0]
            own = folder == "backends" and name.split("/")[:2] == list(path.parts[:2])
            if target not in MAY_INCLUDE[folder] and not own:
                yield f"{path}:{number}: {folder} must not include {name}"


def check_circles(root):
    """Folders within core, parallel, io and app that include each other, directly or through others."""
    includes = {}  # folder -> folder -> one of the includes
    for _, path in sources(root, [folder for folder in MAY_INCLUDE if folder != "backends"]):
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if match and match.group(1) == '"' and pathlib.Path(match.group(2)).parent != path.parent:
                includes.setdefault(path.parent, {}).setdefault(pathlib.Path(match.group(2)).parent,
                                                                f"{path}:{number}: {match.group(2)}")

    def reached(start):
        found, left = set(), [start]
        while left:
            for folder in includes.get(left.pop(), {}):
                if folder not in found:
                    found.add(folder)
                    left.append(folder)
        return found

    for folder, others in sorted(includes.items()):
        for other, place in sorted(others.items()):
            if folder in reached(other):
                yield f"{place} is part of a circle: {other} includes {folder} too, perhaps through others"


def check_features(root):
    for _, path in sources(root, [folder for folder in MAY_INCLUDE if folder != "backends"]):
        if str(path) == "core/base/processor.cpp":  # says what the compiler was told to use
            continue
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            match = CONDITION.match(line)
            if match:
                macros = set(re.findall(r"[A-Za-z_]\w*", match.group(1))) - {"defined"}
                for macro in sorted(macros - PLATFORM_MACROS):
                    yield f"{path}:{number}: a feature test outside backends/: {macro}"


def check_openings(root):
    for _, path in sources(root, [*MAY_INCLUDE, "tests", "benchmarks"]):
        lines = (root / path).read_text().splitlines() + ["", ""]
        if lines[0] != "// SPDX-License-Identifier: BSD-3-Clause":
            yield f"{path}:1: the first line is not the SPDX line"
        if path.suffix == ".hpp":
            if not re.match(r"// \S", lines[1]):
                yield f"{path}:2: the header does not open with its purpose"
            if "#pragma once" not in lines:
                yield f"{path}: no #pragma once"


def check_aliases(root):
    """Names of other namespaces that a source declares and does not use. clang-tidy looks at the main file only."""
    for _, path in sources(root, [*MAY_INCLUDE, "tests", "benchmarks"]):
        if path.suffix != ".cpp":  # headers may declare names for others
            continue
        text = (root / path).read_text()
        for match in ALIAS.finditer(text):
            name = match.group(1) or match.group(2)
            if not re.search(rf"\b{name}\b", text[: match.start()] + text[match.end() :]):
                yield f"{path}: {name} is not used"


CHECKS = {"includes": check_includes, "circles": check_circles, "features": check_features, "openings": check_openings, "aliases": check_aliases}


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in CHECKS:
        sys.exit(__doc__)
    problems = list(CHECKS[sys.argv[1]](pathlib.Path(sys.argv[2])))
    print("\n".join(problems) or "nothing found")
    sys.exit(1 if problems else 0)


main()
