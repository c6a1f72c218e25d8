"""Publishes in a row to two engines, nearly each with a fault: processes killed or stopped, connections cut.

Meanwhile clients ask both engines for greedy samples. Which weights a version number stands for is known beforehand, so in
the end every token that was given out is compared with what an engine says that was started from those weights and saw no
fault. Prints JSON; exit code 1 when a token, an error or anything that grew was wrong.
"""

import argparse
import collections
import json
import os
import random
import signal
import sys
import threading
import time

import bascule_program as bascule
import limits
import network
import soak

CONTENTS = 3
PROMPTS = [[1, 2, 3, 4], [90, 17, 5], [33] * 9]
TOKENS = 256
# Holds a publish of some 160 kB for a third of a second: long enough that `watch` shows it under way.
HELD = "500kB"
DEADLINE_S = 1
# What clients and publishers may meet while somebody is dead, stopped or cut off.
EXPECTED = {
    "peer_lost", "peer_unreachable", "deadline", "engine_stopping", "publisher_busy", "unknown_run", "cancelled",
    "nothing_live",  # of an engine that starts again
}  # fmt: skip
FAULTS = ("none", "none", "kill_publisher", "stop_publisher", "kill_engine", "stop_engine", "cut", "interrupt_publisher")


def content_of(version):
    return bascule.checkpoint(version=1 + version % CONTENTS)


class Clients:
    """One client an engine, which asks without a pause; everything it was given is kept for the judgement."""

    def __init__(self, addresses):
        self.rollouts, self.errors = [], collections.Counter()
        self.strange = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(address,)) for address in addresses]
        for thread in self._threads:
            thread.start()

    def _ask(self, address):
        for turn in range(1 << 30):
            if self._stopping.is_set():
                return
            prompt = PROMPTS[turn % len(PROMPTS)]
            ended = bascule.run(
                "generate", address, "--tokens", ",".join(map(str, prompt)), "--max-new", TOKENS, "--timeout", "10s"
            )
            if ended.code == 0:
                self.rollouts.append((prompt, ended.object))
                continue
            reason = ended.error["reason"] if ended.stdout else "no error object"
            self.errors[reason] += 1
            if reason not in EXPECTED:
                self.strange.append(repr(ended))

    def stop(self):
        self._stopping.set()
        for thread in self._threads:
            thread.join()


class Judge:
    """Engines that were started from each version's weights and never saw a fault."""

    def __init__(self):
        self._engines = [bascule.Engine(content_of(content)) for content in range(CONTENTS)]
        self._known = {}

    def _continued(self, content, tokens, count):
        key = (content, tuple(tokens), count)
        if key not in self._known:
            words = ("--tokens", ",".join(map(str, tokens)), "--max-new", count)
            self._known[key] = bascule.run("generate", self._engines[content].address, *words).object["tokens"]
        return self._known[key]

    def complaint(self, prompt, rollout):
        """Empty, or what no published version would have said. KV state is recomputed at a flip, so each span is what its
        version says after the tokens before it."""
        tokens = rollout["tokens"]
        for span in rollout["spans"]:
            content = span["version"] % CONTENTS
            said = tokens[span["begin"] : span["end"]]
            # The longest that is ever asked for serves every span that begins there.
            wanted = self._continued(content, prompt + tokens[: span["begin"]], TOKENS - span["begin"])
            if said != wanted[: len(said)]:
                return f"version {span['version']} said {said} after {prompt + tokens[: span['begin']]}, not {wanted}"
        return "" if len(tokens) == TOKENS else f"{len(tokens)} tokens, finish {rollout['finish']}"

    def close(self):
        for engine in self._engines:
            engine.kill()


class Fleet:
    """Two engines of two ranks; the second is reached through a proxy that can cut its connections."""

    def __init__(self):
        self.engines = [self._start("127.0.0.1:0") for _ in range(2)]
        self.proxy = network.SlowProxy(self.engines[1].address, delay_s=0)
        self.addresses = [self.engines[0].address, self.proxy.address]
        self.censuses = []  # of each process, killed ones too, one list

    @staticmethod
    def _start(listen):
        engine = bascule.Engine(content_of(0), "--tp", 2, "--slots", 3, listen=listen)
        engine.censuses = []
        return engine

    def restart(self, index):
        self.censuses.append(self.engines[index].censuses)
        address = self.engines[index].address
        self.engines[index].kill()
        self.engines[index] = self._start(address)

    def note(self):
        for engine in self.engines:
            engine.censuses.append(engine.census())

    def at_rest(self):
        """Waits until no session is open and no publisher's memory is mapped; what is left when that never comes."""
        end = time.monotonic() + bascule.PATIENCE_S
        while time.monotonic() < end:
            left = [engine.status()["session"] for engine in self.engines]
            left += [limits.shared_arenas(engine.pid) for engine in self.engines]
            if not any(left):
                return ""
        return f"still there: {left}"

    def close(self):
        codes = []
        for engine in self.engines:
            self.censuses.append(engine.censuses)
            engine.send(signal.SIGTERM)
            codes.append(engine.finish(20).code)
        self.proxy.close()
        return codes


class FaultSoak:
    def __init__(self, seed):
        self._random = random.Random(seed)
        self._deck = []
        self.fleet = Fleet()
        self.outcomes = collections.Counter()
        self.faults = collections.Counter()
        self.strange = []
        self._version = 0

    def publish(self):
        """One publish and its fault. The number is new each time, so that it always stands for the same weights."""
        self._version += 1
        if not self._deck:
            self._deck = self._random.sample(FAULTS, len(FAULTS))  # each once, in any order
        fault = self._deck.pop()
        self.faults[fault] += 1
        victim = self.fleet.engines[self._random.randrange(2)]
        watch = None
        if fault != "none":
            watch = bascule.Running("watch", victim.address)
            watch.next()
        publisher = bascule.Running(
            "publish", content_of(self._version), "--to", ",".join(self.fleet.addresses), "--version", self._version,
            "--run", "soak", "--new-run", "--deadline", f"{DEADLINE_S}s", "--transport",
            self._random.choice(("shm", "grpc")), *(() if fault == "none" else ("--max-rate", HELD)),
        )  # fmt: skip
        if watch is not None:
            # The publish may fail before it gets there (an engine that still ends a session): then that is what happened.
            threading.Thread(target=lambda: (publisher.process.wait(), watch.process.terminate()), daemon=True).start()
            while (line := watch.next()) is not None and (line["session"] or {}).get("state") != "receiving":
                pass
            self._strike(fault, publisher, victim)
            watch.kill()
        self._note(fault, publisher.finish(20))

    def _strike(self, fault, publisher, victim):
        index = self.fleet.engines.index(victim)
        if fault == "kill_publisher":
            publisher.send(signal.SIGKILL)
        elif fault == "interrupt_publisher":
            publisher.send(signal.SIGINT)
        elif fault == "stop_publisher":
            publisher.send(signal.SIGSTOP)
            watch = bascule.Running("watch", victim.address)
            watch.until(lambda line: line["session"] is None)
            watch.kill()
            publisher.send(signal.SIGCONT)
        elif fault == "kill_engine":
            self.fleet.restart(index)
        elif fault == "stop_engine":
            victim.send(signal.SIGSTOP)
            publisher.process.wait(20)
            victim.send(signal.SIGCONT)
        elif fault == "cut":
            self.fleet.proxy.cut()

    def _note(self, fault, ended):
        if not ended.stdout:
            self.outcomes["killed"] += 1
            if fault != "kill_publisher":
                self.strange.append(f"{fault}: {ended!r}")
            return
        report = ended.objects[0]
        reasons = [(replica["error"] or {}).get("reason", "committed") for replica in report.get("replicas", [])]
        self.outcomes.update(reasons or [ended.error["reason"]])
        self.strange += [f"{fault}: {ended!r}" for reason in reasons if reason not in EXPECTED | {"committed"}]


def grown(censuses):
    """Of the processes that lived long enough to tell: by how much each thing grew, at most."""
    growths = [soak.growth(one) for one in censuses if len(one) >= 12]
    return {what: max((growth[what] for growth in growths), default=0) for what in soak.ALLOWED}


def fault_soak(publishes, seed):
    run = FaultSoak(seed)
    clients = Clients([engine.address for engine in run.fleet.engines])
    began = time.monotonic()
    try:
        for _ in range(publishes):
            run.publish()
            run.fleet.note()
    finally:
        clients.stop()
    last = bascule.run("publish", content_of(publishes + 1), "--to", ",".join(run.fleet.addresses), "--version",
                       publishes + 1, "--run", "soak", "--new-run")  # fmt: skip
    left = run.fleet.at_rest()
    codes = run.fleet.close()
    judge = Judge()
    complaints = [complaint for one in clients.rollouts if (complaint := judge.complaint(*one))]
    judge.close()
    grew = grown(run.fleet.censuses)
    wrong = complaints + clients.strange + run.strange
    wrong += [left] if left else []
    wrong += [f"engines ended with {codes}"] if any(codes) else []
    wrong += [f"the last publish, without a fault: {last!r}"] if last.code != 0 else []
    wrong += [f"{what} grew by {by}" for what, by in grew.items() if by > soak.ALLOWED[what]]
    spans = [span for _, rollout in clients.rollouts for span in rollout["spans"]]
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
        "publishes": publishes,
        "faults": dict(run.faults),
        "outcomes": dict(run.outcomes),
        "rollouts": len(clients.rollouts),
        "tokens": sum(len(rollout["tokens"]) for _, rollout in clients.rollouts),
        "rollouts_across_a_flip": len(spans) - len(clients.rollouts),
        "versions_seen": len({span["version"] for span in spans}),
        "errors_of_clients": dict(clients.errors),
        "growth": grew,
        "wrong": wrong,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: scripts/soak --faults --publishes 1000")
    parser.add_argument("--publishes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    report = fault_soak(arguments.publishes, arguments.seed)
    print(json.dumps(report, indent=1))
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    os.environ.setdefault("XDG_RUNTIME_DIR", str(bascule.scratch()))
    sys.exit(main())
