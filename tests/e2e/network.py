"""Networks that belong to a test: two hosts and the wire between them, made of network namespaces; and a proxy that is slow.

Where the kernel or the user may not make namespaces, `link_permitted()` says why not.
"""

import ctypes
import functools
import heapq
import itertools
import os
import selectors
import socket
import subprocess
import threading
import time

CLONE_NEWNET = 0x40000000
_numbers = itertools.count()


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def enter(namespace):
    """For a new process: it lives on that host."""

    def go():
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{namespace}", "rb") as there:
            if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
                os._exit(126)

    return go


class Link:
    """Two hosts, `near` and `far`, on one wire. Addresses are the same in every test: no other host sees them."""

    NEAR, FAR = "10.77.0.1", "10.77.0.2"
    NEAR_6, FAR_6 = "fd77::1", "fd77::2"

    def __init__(self):
        mark = f"b{os.getpid()}x{next(_numbers)}"
        self.near, self.far = mark + "n", mark + "f"
        try:
            for name, four, six in ((self.near, self.NEAR, self.NEAR_6), (self.far, self.FAR, self.FAR_6)):
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            _ip("link", "add", "wire", "netns", self.near, "type", "veth", "peer", "name", "wire", "netns", self.far)
            for name, four, six in ((self.near, self.NEAR, self.NEAR_6), (self.far, self.FAR, self.FAR_6)):
                _ip("-n", name, "addr", "add", four + "/24", "dev", "wire")
                _ip("-n", name, "addr", "add", six + "/64", "dev", "wire", "nodad")
                _ip("-n", name, "link", "set", "wire", "up")
        except Exception:
            self.close()
            raise

    def close(self):
        for name in (self.near, self.far):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def down(self):
        """The near end is pulled: what is sent goes nowhere, and nobody is told."""
        _ip("-n", self.near, "link", "set", "wire", "down")

    def up(self):
        _ip("-n", self.near, "link", "set", "wire", "up")

    def blackhole(self):
        """The near host's packets to the far one vanish; the other way stays open."""
        _ip("-n", self.near, "route", "add", "blackhole", self.FAR + "/32")

    def heal(self):
        _ip("-n", self.near, "route", "del", "blackhole", self.FAR + "/32")

    def limit(self, rate):
        """What the near host sends passes at `rate`, as tc writes it."""
        command = ["tc", "qdisc", "add", "dev", "wire", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
        subprocess.run(["ip", "netns", "exec", self.near, *command], check=True, capture_output=True)


@functools.cache
def link_permitted():
    """Empty, or why there can be no Link here."""
    try:
        Link().close()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be made here: {(getattr(error, 'stderr', '') or str(error)).strip()}"
    return ""


def _connect(address):
    if address.startswith("unix:"):
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(address.removeprefix("unix:"))
        return connected
    host, _, port = address.rpartition(":")
    connected = socket.create_connection((host.strip("[]"), int(port)))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _listen(address):
    """The socket, and its address."""
    if address.startswith("unix:"):
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(address.removeprefix("unix:"))
        listening.listen()
        return listening, address
    host, _, port = address.rpartition(":")
    listening = socket.create_server((host, int(port)))
    return listening, "%s:%d" % listening.getsockname()[:2]


class SlowProxy:
    """Passes connections on to `to`, every byte `delay_s` late in either direction; `cut` ends them all at once."""

    def __init__(self, to, delay_s=0, at="127.0.0.1:0"):
        self._to = to
        self._delay_s = delay_s
        self._listening, self.address = _listen(at)
        self.passed_bytes = 0
        self._peer = {}
        self._callers = set()
        self._waiting = []  # a heap of (when, order, socket, bytes); no bytes: its end
        self._order = itertools.count()
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._orders = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self):
        self._order_now("cut")

    def close(self):
        self._order_now("close")
        self._thread.join()
        for one in (self._listening, self._wake, self._woken):
            one.close()
        self._selector.close()

    def _order_now(self, what):
        self._orders.append(what)
        self._wake.send(b"!")

    def _run(self):
        while True:
            left = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
            for key, _ in self._selector.select(left):
                if key.fileobj is self._listening:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(64)
                elif key.fileobj in self._peer:
                    self._take(key.fileobj)
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, _, target, data = heapq.heappop(self._waiting)
                self._give(target, data)
            while self._orders:
                order = self._orders.pop(0)
                for one in list(self._peer):
                    self._drop(one)
                if order == "close":
                    return

    def _accept(self):
        near, _ = self._listening.accept()
        if near.family != socket.AF_UNIX:
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            far = _connect(self._to)
        except OSError:
            near.close()
            return
        self._callers.add(near)
        for one, other in ((near, far), (far, near)):
            self._peer[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _take(self, source):
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(source)
        elif source in self._callers:
            data = self._pass(data)
        due = time.monotonic() + self._delay_s
        heapq.heappush(self._waiting, (due, next(self._order), self._peer[source], data))

    def _pass(self, data):
        """What becomes of what a caller sends."""
        return data

    def _give(self, target, data):
        if target not in self._peer:
            return
        try:
            if data:
                target.sendall(data)
                self.passed_bytes += len(data)
            else:
                self._drop(target)
        except OSError:
            self._drop(target)

    def _drop(self, one):
        other = self._peer.pop(one, None)
        if other is None:
            return
        self._peer.pop(other, None)
        for end in (one, other):
            try:
                self._selector.unregister(end)
            except KeyError:
                pass
            self._callers.discard(end)
            end.close()


class DamagingProxy(SlowProxy):
    """Damages what callers send, when it is told to: large pieces of a stream, which are weights. Control messages are
    smaller: that those arrive as they were sent is what TCP, or TLS, is for."""

    LARGE = 16 << 10
    WAYS = {
        "bit": lambda data: _with(data, len(data) // 2, bytes([data[len(data) // 2] ^ 4])),
        "zeros": lambda data: _with(data, len(data) // 3, bytes(4096)),
        "lost": lambda data: data[:-100],
        "twice": lambda data: data + data[-100:],
    }

    def __init__(self, *arguments, **options):
        self._ways = []
        self.damaged = 0
        super().__init__(*arguments, **options)

    def damage(self, ways):
        """What becomes of the next large pieces, one after another; of none when `ways` is empty."""
        self._ways = [self.WAYS[way] for way in ways]

    def _pass(self, data):
        ways = self._ways
        if len(data) < self.LARGE or not ways:
            return data
        self.damaged += 1
        return ways.pop(0)(data)


def _with(data, at, other):
    return data[:at] + other + data[at + len(other) :]
