"""Checks the layer table of docs/design.md against every #include of the tree.

    python3 tests/layering/check_includes.py [TREE]      prints each forbidden include and exits 1
    python3 tests/layering/check_includes.py --self-test
"""

import pathlib
import re
import sys
import tempfile

# A folder may include itself and what stands before it.
LAYERS = ["base", "device", "kernels", "bridge", "checkpoint", "model", ("trainer_side", "engine_side"),
          "benchmarks", "tools", "examples"]
# Kernel headers that hold types only; everything else of kernels/ is for bridge/send alone within bridge.
KERNEL_TYPES = {"kernels/box.h", "kernels/digest.h", "kernels/conversion.h"}
# Third-party headers and the only places that may see them.
THIRD_PARTY = [
    (re.compile(r"^(grpc|grpcpp|google/protobuf|bascule/v1)/|^grpc\+\+"), lambda p: "grpc" in p.parts[:-1],
     "gRPC and protobuf belong under /grpc/"),
    (re.compile(r"^spdlog/"), lambda p: str(p) == "base/log.cc", "spdlog belongs in base/log.cc"),
    (re.compile(r"^torch/|^ATen/|^c10/"), lambda p: "torch" in p.parts[:-1] and p.suffix == ".cc" or p.parts[0] == "examples",
     "torch belongs in .cc files of torch folders, and in examples/"),
    (re.compile(r"^oneapi/|^dnnl|^omp\.h"), lambda p: "onednn" in p.parts[:-1] and p.suffix == ".cc",
     "oneDNN and its OpenMP belong in .cc files of onednn folders"),
    (re.compile(r"^cuda|^nccl|^cublas|^device/cuda/"),
     lambda p: p.suffix == ".cu" or {"cublas", "cuda", "cuda_ipc", "nccl"} & set(p.parts[:-1]), "CUDA belongs in .cu files and in folders of its libraries"),
    (re.compile(r"^nlohmann/"),
     lambda p: p.suffix == ".cc" or p.name.endswith("_internal.h") or p.parts[0] == "tools",
     "JSON stays out of public headers"),
    (re.compile(r"^gtest/|^gmock/"), lambda p: p.parts[0] == "tests", "GoogleTest belongs in tests/"),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def rank(folder):
    for number, layer in enumerate(LAYERS):
        if folder == layer or (isinstance(layer, tuple) and folder in layer):
            return number
    return None


def violations(tree):
    for path in sorted(tree.rglob("*")):
        relative = path.relative_to(tree)
        if path.suffix not in {".h", ".cc", ".cu"} or relative.parts[0].startswith((".", "build")):
            continue
        own = rank(relative.parts[0])
        for _, name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            for pattern, allowed, why in THIRD_PARTY:
                if pattern.search(name) and not allowed(relative) and relative.parts[0] != "tests":
                    yield f"{relative}: {name}: {why}"
            top = name.split("/")[0]
            if own is None or "/" not in name or top == relative.parts[0] and top != "bridge":
                continue
            other = rank(top)
            if top == "tests":
                yield f"{relative}: {name}: the product does not include tests"
            elif other is not None and (other > own or other == own and top != relative.parts[0]):
                yield f"{relative}: {name}: {relative.parts[0]} lies below or beside {top}"
            elif (relative.parts[0] == "bridge" and top == "kernels" and relative.parts[1] != "send"
                  and name not in KERNEL_TYPES):
                yield f"{relative}: {name}: within bridge only send/ uses kernels"
            elif (relative.parts[0] == "bridge" and relative.parts[1] not in ("send", "group")
                  and name.startswith(("bridge/send/", "bridge/group/"))):
                yield f"{relative}: {name}: send/ and group/ are the top of bridge"


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        bad = {"trainer_side/a.cc": '#include "engine_side/weight_slots.h"', "base/b.h": '#include "bridge/layout/box.h"',
               "bridge/plan/c.cc": '#include "kernels/pack.h"', "tools/d.cc": "#include <grpcpp/grpcpp.h>",
               "kernels/e.cc": '#include "tests/support/fake_clock.h"', "trainer_side/i.cc": "#include <ATen/core/Tensor.h>",
               "trainer_side/torch/j.h": "#include <torch/types.h>", "device/l.cc": "#include <cuda_runtime_api.h>",
               "kernels/m.h": '#include "device/cuda/launch.h"'}
        good = {"kernels/n.cu": '#include "device/cuda/launch.h"', "device/cuda/o.cc": "#include <cuda.h>",
                "engine_side/f.cc": '#include "bridge/send/weight_source.h"\n#include "kernels/pack.h"',
                "trainer_side/torch/k.cc": "#include <ATen/core/Tensor.h>", "bridge/send/g.cc": '#include "kernels/pack.h"', "bridge/session/grpc/h.cc": "#include <grpcpp/grpcpp.h>"}
        for name, text in {**bad, **good}.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text + "\n", encoding="utf-8")
        found = {line.split(":")[0] for line in violations(tree)}
    if found != set(bad):
        sys.exit(f"self-test: found {sorted(found)}, wanted {sorted(bad)}")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return
    tree = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    found = list(violations(tree))
    print("\n".join(found) or "every include keeps the layers")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
