"""Publishes in a row to two engines, nearly each with a fault: processes killed or stopped, connections cut, frames damaged
on the wire and in the memory that is shared.

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
TIME_TO_SEND_AGAIN_S = 3
# What clients and publishers may meet while somebody is dead, stopped or cut off.
EXPECTED = {
    "peer_lost", "peer_unreachable", "deadline", "engine_stopping", "publisher_busy", "unknown_run", "cancelled",
    "nothing_live",  # of an engine that starts again
}  # fmt: skip
# What a publish may end with whose frames are damaged, beside that: a bucket that was damaged once is sent again, and goes live.
OF_DAMAGE = {"bucket_damaged", "bad_frame", "bad_ack", "buckets_missing"}
STRIKES = ("kill_publisher", "stop_publisher", "kill_engine", "stop_engine", "cut", "interrupt_publisher")
DAMAGES = ("damage_wire", "damage_memory")
FAULTS = ("none", "none", *STRIKES, *DAMAGES)


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


class Scribbler:
    """Flips bits in the frames that a publisher shares with engines, by way of its /proc/PID/mem. Those are stopped for a
    moment, so that frames are hit between their packing and their being read; then, if `on_and_on`, while they are read and
    sent again."""

    MOMENT = 20_000  # bits, a tenth of a second

    def __init__(self, publisher, engines, seed, on_and_on):
        self._publisher, self._engines, self._random, self._on_and_on = publisher, engines, random.Random(seed), on_and_on
        self.flipped = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _frames(self):
        """Where they are mapped: a list of (begin, bytes)."""
        with open(f"/proc/{self._publisher.pid}/maps") as maps:
            ranges = [line.split()[0].split("-") for line in maps if "bascule_arena" in line and " rw-s " in line]
        return [(int(begin, 16), int(end, 16) - int(begin, 16)) for begin, end in ranges]

    def _run(self):
        try:
            with open(f"/proc/{self._publisher.pid}/mem", "r+b", buffering=0) as memory:
                self._scribble(memory.fileno())
        except OSError:
            pass  # the process has ended, or its memory has gone

    def _scribble(self, memory):
        while not any(os.pread(memory, 64, begin).strip(b"\0") for begin, _ in self._frames()):
            pass
        for engine in self._engines:
            engine.send(signal.SIGSTOP)
        try:
            while self.flipped < self.MOMENT:
                self._flip(memory)
        finally:
            for engine in self._engines:
                engine.send(signal.SIGCONT)
        while self._on_and_on:
            self._flip(memory)

    def _flip(self, memory):
        for begin, size in self._frames():
            for at in (begin + self._random.randrange(size) for _ in range(100)):
                if byte := os.pread(memory, 1, at):
                    os.pwrite(memory, bytes([byte[0] ^ 1]), at)
                    self.flipped += 1

    def join(self):
        """Once the publisher has ended."""
        self._thread.join()


class Fleet:
    """Two engines of two ranks. All that publishers send to the second, control and frames, passes a proxy, which cuts
    connections and damages frames: the engine listens at a Unix socket whose file is moved, and the proxy takes its place."""

    def __init__(self):
        self._front = bascule.scratch() / "engine.sock"
        self._behind = bascule.scratch() / "behind.sock"
        self.engines = [self._start("127.0.0.1:0"), self._start_behind_proxy()]
        self.addresses = [self.engines[0].address, f"unix:{self._front}"]
        self.censuses = []  # of each process, killed ones too, one list

    def _start_behind_proxy(self):
        engine = self._start(f"unix:{self._front}")
        self._front.rename(self._behind)
        engine.address = f"unix:{self._behind}"
        self.proxy = network.DamagingProxy(engine.address, at=f"unix:{self._front}")
        return engine

    @staticmethod
    def _start(listen):
        engine = bascule.Engine(content_of(0), "--tp", 2, "--slots", 3, listen=listen)
        engine.censuses = []
        return engine

    def restart(self, index):
        self.censuses.append(self.engines[index].censuses)
        self.engines[index].kill()
        if index == 0:
            self.engines[0] = self._start(self.engines[0].address)
            return
        self.proxy.close()
        self.engines[1] = self._start_behind_proxy()

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
        self._front.unlink()
        return codes


class FaultSoak:
    def __init__(self, seed):
        self._random = random.Random(seed)
        self._deck = []
        self.fleet = Fleet()
        self.outcomes = collections.Counter()
        self.faults = collections.Counter()
        self.damaged = collections.Counter()  # pieces on the wire, bits in memory
        self.strange = []
        self._version = 0

    def publish(self):
        """One publish and its fault. The number is new each time, so that it always stands for the same weights."""
        self._version += 1
        if not self._deck:
            self._deck = self._random.sample(FAULTS, len(FAULTS))  # each once, in any order
        fault = self._deck.pop()
        self.faults[fault] += 1
        if fault in DAMAGES:
            return self._publish_damaged(fault)
        victim = self.fleet.engines[self._random.randrange(2)]
        watch = None
        if fault != "none":
            watch = bascule.Running("watch", victim.address)
            watch.next()
        publisher = self._start_publisher(self._random.choice(("shm", "grpc")), held=fault != "none")
        if watch is not None:
            # The publish may fail before it gets there (an engine that still ends a session): then that is what happened.
            threading.Thread(target=lambda: (publisher.process.wait(), watch.process.terminate()), daemon=True).start()
            while (line := watch.next()) is not None and (line["session"] or {}).get("state") != "receiving":
                pass
            self._strike(fault, publisher, victim)
            watch.kill()
        self._note(fault, publisher.finish(20))

    def _start_publisher(self, transport, held, deadline_s=DEADLINE_S):
        return bascule.Running(
            "publish", content_of(self._version), "--to", ",".join(self.fleet.addresses), "--version", self._version,
            "--run", "soak", "--new-run", "--deadline", f"{deadline_s}s", "--transport", transport,
            *(("--max-rate", HELD) if held else ()),
        )  # fmt: skip

    def _publish_damaged(self, fault):
        if fault == "damage_wire":
            ways = self._random.choices(sorted(self.fleet.proxy.WAYS), k=self._random.choice((1, 1, 2, 8)))
            self.fleet.proxy.damage(ways)
            before = self.fleet.proxy.damaged
            ended = self._start_publisher("grpc", held=False).finish(20)
            self.damaged["pieces_on_the_wire"] += self.fleet.proxy.damaged - before
            self.fleet.proxy.damage([])
        else:
            publisher = self._start_publisher("shm", held=True, deadline_s=TIME_TO_SEND_AGAIN_S)
            scribbler = Scribbler(publisher, self.fleet.engines, self._version, on_and_on=self._random.random() < 0.3)
            ended = publisher.finish(20)
            scribbler.join()
            self.damaged["bits_in_memory"] += scribbler.flipped
        self._note(fault, ended)

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
        # What is sent once to two engines is twice the version, and a little.
        self.damaged["publishes_that_sent_again"] += report.get("wire_bytes", 0) > 2.2 * report.get("bytes", 0) > 0
        replicas = report.get("replicas") or [report]
        reasons = [(replica["error"] or {}).get("reason", "committed") for replica in replicas]
        self.outcomes.update(reasons)
        expected = EXPECTED | {"committed"} | (OF_DAMAGE if fault in DAMAGES else set())
        self.strange += [f"{fault}: {ended!r}" for reason in reasons if reason not in expected]


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
        "damaged": dict(run.damaged),
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
