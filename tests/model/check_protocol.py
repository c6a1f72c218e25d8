#!/usr/bin/env python3
"""Checks protocol.pml, the model of docs/protocol.md, with spin.

  check_protocol.py safety              no step reads a mix, nothing flips unverified or undecided, nobody is stuck
  check_protocol.py liveness            every session ends
  check_protocol.py mutations           every rule is needed: without it spin finds a violation

More faults and attempts take longer: 1 fault and 2 attempts are 5 million states, each more is ten times as many:
  check_protocol.py safety --faults 2 --attempts 2
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

MODEL = pathlib.Path(__file__).resolve().parent / "protocol.pml"
SAFETY = (["-DSAFETY"], [])
LIVENESS = (["-DNFAIR=3"], ["-a", "-f"])  # under weak fairness: a process that can always go on does so


def explore(defines, mode, memory_mb):
    """One search: (violation or None, states)."""
    compile_flags, run_flags = mode
    with tempfile.TemporaryDirectory() as folder:
        def run(*command):
            return subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        made = run("spin", *defines, "-a", str(MODEL))
        if made.returncode != 0 or "Error" in made.stdout:
            sys.exit(f"check_protocol: spin does not take the model:\n{made.stdout}")
        made = run("gcc", "-O1", "-w", "-DCOLLAPSE", f"-DMEMLIM={memory_mb}", *compile_flags, "-o", "pan", "pan.c")
        if made.returncode != 0:
            sys.exit(f"check_protocol: the verifier does not compile:\n{made.stdout}")
        searched = run("./pan", "-m1000000", *run_flags).stdout
        # A search that was cut short has proven nothing.
        states = re.search(r"(\d[\d.e+]*) states, stored", searched)
        errors = re.search(r"errors: (\d+)", searched)
        if not states or not errors or "out of memory" in searched or "max search depth too small" in searched:
            sys.exit(f"check_protocol: the search did not end:\n{searched}")
        if int(errors[1]) == 0:
            return None, int(float(states[1]))
        violation = re.search(r"^pan:1: (.*)$", searched, re.MULTILINE)
        if not violation:
            sys.exit(f"check_protocol: the search failed:\n{searched}")
        steps = run("spin", *defines, "-t", "-c", "-k", f"{MODEL.name}.trail", str(MODEL)).stdout
        return f"{violation[1]}\n{steps}", int(float(states[1]))


def prove(what, defines, mode, memory_mb):
    violation, states = explore(defines, mode, memory_mb)
    if violation:
        sys.exit(f"{what} {' '.join(defines)}: {violation}")
    print(f"{what} {' '.join(defines)}: {states} states, no violation")


def mutations():
    listed = MODEL.read_text().split("#define NO_MUTATION 0")[1].split("#ifndef MUTATION")[0]
    return {name: int(number) for name, number in re.findall(r"^#define ([A-Z_]+) (\d+)", listed, re.MULTILINE)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["safety", "liveness", "mutations"])
    parser.add_argument("--faults", type=int, default=1)
    parser.add_argument("--attempts", type=int)
    parser.add_argument("--memory", type=int, default=4000, metavar="MB")
    args = parser.parse_args()

    def sizes(attempts):
        return [f"-DFAULTS={args.faults}", f"-DATTEMPTS={args.attempts or attempts}"]

    if args.what == "safety":
        prove("safety", sizes(2), SAFETY, args.memory)
        # Decoding never rests, so that nobody is stuck shows without it.
        prove("safety", sizes(1) + ["-DNO_DECODING"], SAFETY, args.memory)
    elif args.what == "liveness":
        prove("liveness", sizes(1) + ["-DNO_DECODING", "-DLIVENESS"], LIVENESS, args.memory)
    else:
        found = mutations()
        if len(found) < 8:
            sys.exit(f"check_protocol: only {len(found)} mutations in {MODEL}")
        for name, number in found.items():
            live = name == "NO_DEADLINE"
            defines = sizes(1 if live else 2) + [f"-DMUTATION={number}"] + (["-DNO_DECODING", "-DLIVENESS"] if live else [])
            violation, states = explore(defines, LIVENESS if live else SAFETY, args.memory)
            if not violation:
                sys.exit(f"{name}: {states} states, and nothing found: the model does not check that rule")
            print(f"{name}: found after {states} states: {violation.splitlines()[0]}")


if __name__ == "__main__":
    main()
