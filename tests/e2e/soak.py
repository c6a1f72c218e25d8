"""A soak of the built program: an engine under constant load and a publish every two seconds.

Prints JSON: what was decoded and published, every error, what grew, and how long decoding stood still. Exit code 1 when there
was an error, something grew, or stalls became longer.
"""

import argparse
import json
import os
import sys
import threading
import time

import bascule_program as bascule

# Growth beyond these, from the first third of the run to the last, is a leak. Threads and descriptors come and go by a few.
ALLOWED = {"descriptors": 12, "threads": 12, "resident_kb": 24 << 10}
SAMPLES = 8
TOKENS = 200


class Load:
    """Clients that ask for samples, one batch after another, until they are told to stop."""

    def __init__(self, address, clients):
        self.stopping = threading.Event()
        self.errors = []
        self.rollouts = self.tokens = self.crossed = 0
        self._lock = threading.Lock()
        self._address = address
        self._threads = [threading.Thread(target=self._ask, args=(client,)) for client in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, client):
        prompt = ",".join(str((client * 31 + place * 7) % 128) for place in range(20 + client))
        policies = ("recompute", "drain", "keep")
        for turn in range(1 << 30):
            if self.stopping.is_set():
                return
            ended = bascule.run(
                "generate", self._address, "--tokens", prompt, "--samples", SAMPLES, "--max-new", TOKENS,
                "--temperature", "1", "--seed", turn, "--kv", policies[turn % 3],
            )  # fmt: skip
            with self._lock:
                self._note(ended)

    def _note(self, ended):
        if ended.code != 0:
            self.errors.append(repr(ended))
            return
        for rollout in ended.objects:
            self.rollouts += 1
            self.tokens += len(rollout["tokens"])
            self.crossed += len(rollout["spans"]) > 1
            ends = [0] + [span["end"] for span in rollout["spans"]]
            if rollout["finish"] != "length" or ends[:-1] != [span["begin"] for span in rollout["spans"]]:
                self.errors.append(f"a rollout ended as {rollout['finish']} with spans {rollout['spans']}")

    def stop(self):
        self.stopping.set()
        for thread in self._threads:
            thread.join()


def growth(censuses):
    """By what the smallest of the last third is above the smallest of the first; the very beginning is warming up."""
    settled = censuses[len(censuses) // 6 :]
    third = max(1, len(settled) // 3)
    return {
        what: min(census[what] for census in settled[-third:]) - min(census[what] for census in settled[:third])
        for what in ALLOWED
    }


def median(values):
    return sorted(values)[len(values) // 2] if values else 0


def soak(enough, period_s, clients=2):
    """Publishes until `enough(publishes)`; gives the report."""
    engine = bascule.Engine(bascule.checkpoint(), "--slots", "3")
    load = Load(engine.address, clients)
    errors, stalls, censuses = [], [], []
    began = time.monotonic()
    try:
        while not enough(len(censuses)):
            due = began + period_s * len(censuses)
            load.stopping.wait(max(0.0, due - time.monotonic()))
            ended = bascule.run("publish", bascule.checkpoint(version=2 + len(censuses) % 2), "--to", engine.address)
            if ended.code != 0:
                errors.append(repr(ended))
            else:
                stalls.append(ended.object["replicas"][0]["flip_stall_us"])
            censuses.append(engine.census())
    finally:
        load.stop()
        details = bascule.run("status", engine.address, "--details").object
        engine.send(15)
        code = engine.finish(20).code
    if code != 0:
        errors.append(f"the engine ended with {code}")
    stalled = [stall for stall in stalls if stall > 0]
    half = len(stalled) // 2
    return {
        "seconds": round(time.monotonic() - began, 1),
        "publishes": len(censuses),
        "rollouts": load.rollouts,
        "tokens": load.tokens,
        "rollouts_across_a_flip": load.crossed,
        "errors": errors + load.errors,
        "growth": growth(censuses),
        "stall_us": details["flips"]["stall_us"],
        "stall_us_p50_of_halves": [median(stalled[:half]), median(stalled[half:])],
        "stall_histogram_us": details["details"]["stall_histogram_us"],
        "token_gap_histogram_us": details["details"]["token_gap_histogram_us"],
    }


def faults(report):
    """What is wrong with it, as sentences."""
    found = [f"error: {error}" for error in report["errors"]]
    for what, allowed in ALLOWED.items():
        if report["growth"][what] > allowed:
            found.append(f"{what} grew by {report['growth'][what]}")
    before, after = report["stall_us_p50_of_halves"]
    if after > 10 * before + 100:
        found.append(f"the median stall grew from {before} to {after} us")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: scripts/soak --minutes 30")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--publish-every", type=float, default=2, metavar="SECONDS")
    parser.add_argument("--clients", type=int, default=2, help=f"each asks for {SAMPLES} rollouts at a time")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    report = soak(lambda _: time.monotonic() >= end, arguments.publish_every, arguments.clients)
    report["faults"] = faults(report)
    print(json.dumps(report, indent=1))
    return 1 if report["faults"] else 0


if __name__ == "__main__":
    os.environ.setdefault("XDG_RUNTIME_DIR", str(bascule.scratch()))
    sys.exit(main())
