"""Checks what programs and the CUDA module are linked to.

    python3 check_links.py --core PROGRAM...    no library of CUDA, however indirectly (ldd)
    python3 check_links.py --module MODULE      libcudart through RUNPATH; nothing else of CUDA; only bascule_cuda_* shown
    python3 check_links.py --fake RUNTIME MODULE  all that MODULE needs of libcudart is in RUNTIME, under the same version
"""

import re
import subprocess
import sys

CUDA = re.compile(r"lib(cuda|cudart|cublas\w*|nccl|nvrtc|nvJitLink)\.so")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_core(program):
    return [f"{program} needs {line.split()[0]}" for line in output("ldd", program).splitlines() if CUDA.search(line)]


def check_module(module):
    dynamic = output("readelf", "-dW", module)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    runpath = re.findall(r"\(RUNPATH\).*\[(.*)\]", dynamic)
    shown = {line.split()[-1].split("@")[0] for line in output("nm", "-D", "--defined-only", module).splitlines()}
    wrong = []
    if {name for name in needed if CUDA.search(name)} != {"libcudart.so.13"}:
        wrong.append(f"needs {sorted(needed)}: of CUDA, libcudart.so.13 and nothing else")
    if "(RPATH)" in dynamic or len(runpath) != 1 or not all(path.startswith("/") for path in runpath[0].split(":")):
        wrong.append(f"RUNPATH {runpath}: one, of absolute folders, and no RPATH")
    if "bascule_cuda_backend" not in shown or not all(name.startswith("bascule_cuda_") for name in shown):
        wrong.append(f"shows {sorted(shown)}: bascule_cuda_backend, and only bascule_cuda_*")
    return wrong


def check_fake(runtime, module):
    has = {line.split()[-1].replace("@@", "@") for line in output("nm", "-D", "--defined-only", runtime).splitlines()}
    needs = {line.split()[-1] for line in output("nm", "-D", "--undefined-only", module).splitlines()
             if line.endswith("@libcudart.so.13")}
    return [f"{runtime} has no {name}" for name in sorted(needs - has)] or ([] if needs else [f"{module} calls nothing"])


def main():
    if sys.argv[1] == "--fake":
        wrong = check_fake(*sys.argv[2:])
    else:
        check = {"--core": check_core, "--module": check_module}[sys.argv[1]]
        wrong = [line for path in sys.argv[2:] for line in check(path)]
    print("\n".join(wrong) or "as it should be")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
