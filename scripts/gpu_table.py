"""The GPU benchmarks as a table on the terminal, and as a file of benchmarks/results/ that says when and on what: for scripts/gpu_check.

  gpu_table.py BUILD         on the machine's first GPU
  gpu_table.py --dry BUILD   small, over the fake CUDA of that build, and nothing is written: no figure means anything
"""

import datetime
import json
import os
import pathlib
import subprocess
import sys

RESULTS = pathlib.Path(__file__).parent.parent / "benchmarks" / "results"


def fake_cuda(build):
    """What makes a program find the fake runtime before the real one, and its module and kernels."""
    fake = build / "tests" / "support" / "fake_cuda"
    return {
        "LD_LIBRARY_PATH": str(fake / "lib"),
        "BASCULE_CUDA_MODULE": str(next(build.glob("lib*/libbascule_cuda.so"))),
        "BASCULE_FAKE_CUDA_KERNELS": str(next(fake.glob("*bascule_fake_kernels*"))),
    }


def run(build, dry):
    environment = {**os.environ, **(fake_cuda(build) if dry else {})}
    program = [str(build / "benchmarks" / "gpu" / "gpu_bench")] + (["--dry"] if dry else [])
    ended = subprocess.run(program, env=environment, stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    if any(row["dry"] != dry for row in rows):
        sys.exit("gpu_table: the rows are not of the run that was asked for")
    return rows, ended.returncode


def table(rows):
    """Markdown, which reads well on a terminal too."""
    lines = ["| what | value | beside | ratio |", "|---|---|---|---|"]
    for row in rows:
        beside = f"{row['limit_what']}, {row['limit']:.4g} {row['unit']}"
        lines.append(f"| {row['name']} | {row['value']:.4g} {row['unit']} | {beside} | {row['ratio']:.3g} |")
    return "\n".join(lines)


def hardware():
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(query, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def commit():
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return said.stdout.strip() or "unknown"


def write(rows):
    now = datetime.datetime.now(datetime.timezone.utc)
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"gpu-{now:%Y%m%d-%H%M%S}"
    about = {"date": now.isoformat(timespec="seconds"), "hardware": hardware(), "cores": os.cpu_count(), "commit": commit()}
    stem.with_suffix(".json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    title = f"{about['hardware']}; {about['cores']} cores; {now:%Y-%m-%d}; commit {about['commit']}"
    stem.with_suffix(".md").write_text(f"{title}\n\n{table(rows)}\n")
    return stem


def main():
    arguments = sys.argv[1:]
    dry = arguments[:1] == ["--dry"]
    if len(arguments) != 1 + dry:
        sys.exit(__doc__)
    rows, code = run(pathlib.Path(arguments[-1]), dry)
    if dry:
        print("DRY RUN over a fake CUDA: it shows that the benchmarks run through, and no figure means anything\n")
    print(table(rows))
    if code == 0 and not dry:
        print(f"\nwritten to {write(rows)}.md and .json")
    sys.exit(code)


if __name__ == "__main__":
    main()
