"""The network that the other tests of this folder stand on: what it lets through, what it drops, and that it goes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from machines import HERE, Machine, Network, why_not

MakeNetwork = Callable[..., Network]

ECHO = """
import socket, sys, threading
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
print("up", flush=True)
def serve(sock):
    while data := sock.recv(1 << 20): sock.sendall(data)
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
CALLER = """
import socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.7)
for line in sys.stdin:
    size = int(line)
    try:
        sock.sendall(b"x" * size); got = 0
        while got < size: got += len(sock.recv(1 << 20))
        print("echoed", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


def echo(machine: Machine, address: str, port: int = 7000) -> None:
    server = machine.start(sys.executable, "-c", ECHO, address, str(port), stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"up\n"


class Caller:
    """A connection from a machine, asked to send so many bytes there and back."""

    def __init__(self, machine: Machine, address: str, port: int = 7000) -> None:
        args = (sys.executable, "-c", CALLER, address, str(port))
        self.process = machine.start(*args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def says(self, num_bytes: int = 1) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(b"%d\n" % num_bytes)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has not even connected
        return str(self.process.stdout.readline().decode().strip()) or "no connection"


def test_machines_have_addresses_names_and_nothing_in_common(make_network: MakeNetwork) -> None:
    net = make_network(3, names=("gate", "p", "d"))
    gate, p, d = net.machines
    for address in (d.ipv4, d.ipv6):
        echo(d, address)
        for machine in (gate, p):
            assert Caller(machine, address).says(1 << 16) == "echoed"
    assert gate.run("hostname").stdout.strip() == "gate"
    assert d.ipv4 in gate.run("getent", "hosts", "d").stdout
    gate.set_hosts({"d": "10.9.9.9"})
    assert "10.9.9.9" in gate.run("getent", "hosts", "d").stdout
    boots = {m.run("cat", "/proc/sys/kernel/random/boot_id").stdout for m in net.machines}
    assert len(boots) == 3
    d.mount_tmpfs(1 << 20)
    assert "1024" in d.run("df", "-k", "/dev/shm").stdout
    assert "1024 " not in p.run("df", "-k", "/dev/shm").stdout.splitlines()[1]
    assert Path(d.run("pwd").stdout.strip()) == Path.cwd()


def test_what_is_cut_is_silent_and_what_heals_goes_on(make_network: MakeNetwork) -> None:
    net = make_network(2)
    a, b = net.machines
    echo(b, b.ipv4)
    echo(b, b.ipv4, 7001)
    call = Caller(a, b.ipv4)
    assert call.says() == "echoed"
    net.cut(b)
    assert Caller(a, b.ipv4).says() == "no connection"
    assert call.says() == "TimeoutError"  # no reset, no word
    net.heal()
    assert Caller(a, b.ipv4).says() == "echoed"
    net.cut_way(b, a)
    assert Caller(a, b.ipv4).says() == "no connection"
    net.heal()
    net.filter_port(b, 7001)
    assert Caller(a, b.ipv4, 7001).says() == "no connection"
    assert Caller(a, b.ipv4, 7000).says() == "echoed"


def test_large_packets_vanish_and_flows_are_forgotten(make_network: MakeNetwork) -> None:
    net = make_network(2)
    a, b = net.machines
    echo(b, b.ipv4)
    net.drop_larger_than(1280)
    call = Caller(a, b.ipv4)
    assert call.says(1000) == "echoed"
    assert call.says(100_000) == "TimeoutError"
    net.heal()
    call = Caller(a, b.ipv4)
    assert call.says() == "echoed"
    net.forget_flows()
    assert call.says() == "TimeoutError"
    assert Caller(a, b.ipv4).says() == "echoed"
    net.hide(a)
    assert Caller(a, b.ipv4).says() == "echoed"
    echo(a, a.ipv4)
    assert Caller(b, a.ipv4).says() == "no connection"


def test_a_network_without_ipv4_has_a_rate_and_a_delay(make_network: MakeNetwork) -> None:
    net = make_network(2, families=(6,), delay_s=0.005, rate="10mbit")
    a, b = net.machines
    assert "inet 10." not in a.run("ip", "-4", "addr").stdout
    echo(b, b.ipv6)
    call = Caller(a, b.ipv6)
    call.says()
    started_s = time.monotonic()
    assert call.says() == "echoed"
    assert time.monotonic() - started_s >= 0.02  # twice there, twice back
    started_s = time.monotonic()
    assert call.says(600_000) == "echoed"
    assert time.monotonic() - started_s >= (600_000 - 300_000) / 1.25e6  # less what a full bucket lets through
    net.set_path(0.0, 1.0)
    assert call.says() == "TimeoutError"


def test_a_machine_can_lose_its_power_or_hang(make_network: MakeNetwork) -> None:
    a, b = make_network(2).machines
    echo(b, b.ipv4)
    call = Caller(a, b.ipv4)
    assert call.says() == "echoed"
    b.freeze()
    assert call.says() == "TimeoutError"
    b.thaw()
    assert Caller(a, b.ipv4).says() == "echoed"
    b.kill()
    assert Caller(a, b.ipv4).says() == "no connection"


@pytest.mark.slow
def test_nothing_stays_behind_when_the_test_is_killed() -> None:
    """Red if a namespace or a process on a machine outlives a test that could not clean up."""
    if reason := why_not():
        pytest.skip(reason)
    script = (
        f"import sys, time; sys.path.insert(0, {str(HERE)!r}); from machines import Network; "
        "n = Network(2, path=True); p = n.machines[0].start('sleep', '1000'); "
        "print(p.pid, n.router.pid, *(m.pid for m in n.machines), *(f.pid for f in n._forwarders), flush=True); "
        "time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout is not None
        pids = [int(word) for word in re.findall(r"\d+", test.stdout.readline())]
        assert len(pids) == 6
        test.send_signal(signal.SIGKILL)
    deadline_s = time.monotonic() + 10
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline_s, f"{[pid for pid in pids if _runs(pid)]} still run"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
