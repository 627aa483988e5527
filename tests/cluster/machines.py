"""Two or three machines on one box, and a network between them that can be cut, slowed, filtered and forgetful.

    with Network(2) as net:                     # or the fixture: net = make_network(2, rate="1gbit", delay_s=0.005)
        p, d = net.machines
        server = d.start(sys.executable, "-m", "relevo", "serve", ...)   # a Popen of the program itself
        p.run("curl", "-s", f"http://{d.ipv4}:8000/health")
        net.cut(d)                              # a silent partition: nothing to it and nothing from it
        net.heal()

A **machine** is a network, mount and UTS namespace: its own interfaces, ports, `/etc/hosts`, host name, boot id and
`/dev/shm`; files and process ids are those of the box, so `os.kill` works from outside. All machines are joined by a
**router**, a namespace too, in which every rule of the network lives:

| call | what happens to packets |
|---|---|
| `cut(m, ...)` | all to and from these machines vanish |
| `cut_between(a, b)`, `cut_way(a, b)` | those between two machines vanish, or only those from a to b |
| `filter_port(m, port)` | those to this TCP port of m vanish (a firewall that drops) |
| `drop_larger_than(n)` | IP packets of more than n bytes vanish, without a word to their sender (a black hole) |
| `forget_flows()` | those of connections that exist vanish, new connections work (conntrack that was emptied) |
| `hide(m)` | m is behind NAT: others see the router's address, and cannot begin a connection to it |
| `heal()` | none of the above any more; flows that were forgotten stay so |
| `set_rate("10mbit", m)` | at most so many leave and reach m, or every machine |
| `set_path(delay_s, loss_fraction)` | each waits in each direction and may be lost; made with `Network(path=True)` |

`families=(6,)` makes a network without IPv4 (127.0.0.1 stays). `machine.kill()` is the power cord, `freeze()` and
`thaw()` stop every process of it; `set_hosts` rewrites its names; `mount_tmpfs` gives it a small `/dev/shm`.

Nothing has a name in the system: namespaces end with the processes in them. Each is held by a process that reads a
pipe from the test; when the test ends, however it ends, the holder kills what still runs there and goes. Processes
whose holder was killed too are swept by the next network: they carry the test's process id in their environment.

Needs root, the packages iproute2 and nftables, and /dev/net/tun for delay and loss: `why_not()` says what is missing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).parent
OWNER = "RELEVO_TEST_MACHINE_OF"  # in the environment of all that runs on a machine: process id of the test
_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables", "unshare": "util-linux", "nsenter": "util-linux"}
_NO_WAITING = ("all/accept_dad", "default/accept_dad", "all/router_solicitations", "default/router_solicitations")
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


@functools.cache
def why_not() -> str | None:
    """One sentence that says why no machines can be made here; None if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "machines on one box need Linux and root"
    missing = {package for program, package in _PACKAGES.items() if shutil.which(program) is None}
    if missing:
        return f"machines on one box need the package(s) {' '.join(sorted(missing))}: apt-get install them"
    trial = (
        "ip link add one type veth peer name two && tc qdisc add dev one root tbf rate 1mbit burst 32k latency 1s && "
    )
    trial += "nft add table inet t && nft add chain inet t f '{type filter hook forward priority 0;}' && "
    trial += "nft add rule inet t f ct mark 1 drop"
    tried = subprocess.run(["unshare", "-n", "-m", "-u", "sh", "-c", trial], capture_output=True, text=True)
    return f"this kernel makes no machines on one box: {tried.stderr.strip()[-200:]}" if tried.returncode else None


class Machine:
    """One of a network's. Its name is its host name, and every machine's hosts file has it."""

    def __init__(self, name: str, number: int, families: Sequence[int], scratch: Path) -> None:
        self.name = name
        self.number = number
        self.families = families
        self.ipv4 = f"10.77.{number}.2" if 4 in families else ""
        self.ipv6 = f"fd77:{number}::2" if 6 in families else ""
        self.hosts_file = scratch / f"hosts.{number}"
        self.hosts_file.touch()
        boot_id = scratch / f"boot.{number}"
        boot_id.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", sys.executable, "-ISE", str(HERE / "machine_holder.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.read(1) == b"."
        quiet = "".join(f"echo 0 > /proc/sys/net/ipv6/conf/{each}; " for each in _NO_WAITING)
        self.setup(
            f"hostname {name}; ip link set lo up; {quiet} mount --bind {self.hosts_file} /etc/hosts; "
            f"mount --bind {boot_id} {_BOOT_ID}; mount -t sysfs sys /sys 2>/dev/null || true"
        )

    @property
    def address(self) -> str:
        """Of IPv4 if there is one."""
        return self.ipv4 or self.ipv6

    @property
    def pid(self) -> int:
        """Of the process that holds its namespaces."""
        return self._holder.pid

    def command(self, *command: str) -> list[str]:
        return ["nsenter", "-t", str(self.pid), "-n", "-m", "-u", f"--wdns={Path.cwd()}", "--", *command]

    def start(self, *command: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[Any]:
        """A program on this machine, in the current folder; its process id is the program's own."""
        env = {**(os.environ if env is None else env), OWNER: str(os.getpid())}
        return subprocess.Popen(self.command(*command), env=env, **more)

    def run(self, *command: str, timeout_s: float = 60.0, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*command),
            env={**os.environ, OWNER: str(os.getpid())},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert not check or done.returncode == 0, f"{' '.join(command)} on {self.name}: {done.stdout}{done.stderr}"
        return done

    def setup(self, script: str) -> None:
        self.run("sh", "-e", "-c", script)

    def set_hosts(self, names: dict[str, str]) -> None:
        """Name -> address, beside localhost; in place, so that running programs see it at their next look-up."""
        lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{address} {name}" for name, address in names.items())]
        self.hosts_file.write_text("\n".join(lines) + "\n", encoding="ascii")

    def mount_tmpfs(self, size_bytes: int, place: str = "/dev/shm") -> None:
        self.setup(f"mount -t tmpfs -o size={size_bytes} tmpfs {place}")

    def processes(self) -> list[int]:
        """That run here, without the holder."""
        return [pid for pid in _processes_in(_namespace(self.pid)) if pid != self.pid]

    def kill(self) -> None:
        """The power cord: every process of this machine is ended at once."""
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        """When it returns, nothing on the machine runs any more."""
        self._signal(signal.SIGSTOP)
        deadline_s = time.monotonic() + 10.0
        while any(_runs(pid) for pid in self.processes()):
            assert time.monotonic() < deadline_s, "a process does not stop"
            time.sleep(0.005)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End everything on it, and the machine. Idempotent."""
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.stdout.close()
        self._holder.wait(30)

    def _signal(self, number: int) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class Network:
    """Machines m0, m1, ... around a router. A context: leaving it removes everything."""

    def __init__(
        self,
        num_machines: int = 2,
        *,
        families: Sequence[int] = (4, 6),
        rate: str | None = None,
        path: bool = False,
        delay_s: float = 0.0,
        loss_fraction: float = 0.0,
        mtu: int = 1500,
        names: Sequence[str] = (),
    ) -> None:
        """`rate`: as tc writes it (10mbit, 1gbit). `path`: every packet takes the way through a program that can delay
        and lose it; implied by a delay or loss. The machines are called `names`, or else m0, m1 ..."""
        _sweep()
        self._scratch = tempfile.TemporaryDirectory(prefix="relevo-machines-")
        scratch = Path(self._scratch.name)
        self._rules: list[str] = []
        self._hidden: list[str] = []
        self._generation = 1
        self._forwarders: list[subprocess.Popen[bytes]] = []
        self.router = Machine("router", 0, families, scratch)
        self.machines: list[Machine] = []
        try:
            for number in range(1, num_machines + 1):
                name = names[number - 1] if names else f"m{number - 1}"
                self.machines.append(Machine(name, number, families, scratch))
            lossless = loss_fraction == 0.0
            for machine in self.machines:
                self._join(machine, mtu, lossless, is_veth=not (path or delay_s or loss_fraction))
                machine.set_hosts({each.name: each.address for each in self.machines})
            self.router.setup("echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")
            self._apply()
            if delay_s or loss_fraction:
                self.set_path(delay_s, loss_fraction)
            if rate is not None:
                self.set_rate(rate)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Network:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for forwarder in self._forwarders:
            forwarder.kill()
            forwarder.wait()
            assert forwarder.stdin is not None
            assert forwarder.stdout is not None
            forwarder.stdin.close()
            forwarder.stdout.close()
        for machine in [*self.machines, self.router]:
            machine.close()
        self._scratch.cleanup()

    # ---- what becomes of packets

    def cut(self, *machines: Machine) -> None:
        for m in machines:
            self._rules += [f"iifname {_port(m)} drop", f"oifname {_port(m)} drop"]
        self._apply()

    def cut_between(self, one: Machine, other: Machine) -> None:
        self.cut_way(one, other)
        self.cut_way(other, one)

    def cut_way(self, source: Machine, target: Machine) -> None:
        self._rules.append(f"iifname {_port(source)} oifname {_port(target)} drop")
        self._apply()

    def filter_port(self, machine: Machine, port: int | str) -> None:
        """`port`: a number, or a range as 7100-7110."""
        self._rules.append(f"oifname {_port(machine)} tcp dport {port} drop")
        self._apply()

    def drop_larger_than(self, num_bytes: int) -> None:
        self._rules.append(f"meta length > {num_bytes} drop")
        self._apply()

    def forget_flows(self) -> None:
        self._generation += 1
        self._apply()

    def hide(self, machine: Machine) -> None:
        self._hidden.append(_port(machine))
        self._apply()

    def heal(self) -> None:
        self._rules.clear()
        self._hidden.clear()
        self._apply()

    def set_rate(self, rate: str, machine: Machine | None = None) -> None:
        for m in [machine] if machine else self.machines:
            shape = f"root tbf rate {rate} burst 256k latency 50ms"
            m.setup(f"tc qdisc replace dev net0 {shape}")
            self.router.setup(f"tc qdisc replace dev {_port(m)} {shape}")

    def set_path(self, delay_s: float, loss_fraction: float = 0.0) -> None:
        """Of every packet, in each direction, between a machine and the router: two machines are twice as far."""
        assert self._forwarders, "the network was made without path=True"
        for forwarder in self._forwarders:
            assert forwarder.stdin is not None
            forwarder.stdin.write(f"{delay_s} {loss_fraction}\n".encode())
            forwarder.stdin.flush()

    # ---- how it is made

    def _join(self, m: Machine, mtu: int, lossless: bool, is_veth: bool) -> None:
        if is_veth:
            self.router.setup(f"ip link add {_port(m)} type veth peer name net0 netns {m.pid}")
        else:
            self._forwarders.append(_forwarder(m, self.router, lossless))
        here, there = [], []
        if 4 in m.families:
            here += [f"ip addr add {m.ipv4}/24 dev net0", f"ip route add default via 10.77.{m.number}.1 dev net0"]
            there += [f"ip addr add 10.77.{m.number}.1/24 dev {_port(m)}"]
        if 6 in m.families:
            gateway = f"fd77:{m.number}::1"
            here += [f"ip addr add {m.ipv6}/64 dev net0 nodad", f"ip route add default via {gateway} dev net0"]
            there += [f"ip addr add {gateway}/64 dev {_port(m)} nodad"]
        m.setup("; ".join([f"ip link set net0 mtu {mtu} up", *here]))
        self.router.setup("; ".join([f"ip link set {_port(m)} mtu {mtu} up", *there]))

    def _apply(self) -> None:
        """All rules at once: the old ones and the new ones never both, and never none."""
        generation = self._generation
        forgetting = [f"ct state new ct mark set {generation}", f"ct mark != {generation} drop"]
        hiding = [f"oifname {port} ct state new drop" for port in self._hidden]
        posing = [f"iifname {port} masquerade" for port in self._hidden]
        ruleset = "\n".join(
            [
                "table inet machines",
                "delete table inet machines",
                "table inet machines {",
                " chain pass { type filter hook forward priority 0;",
                *self._rules,
                *hiding,
                *forgetting,
                " }",
                " chain pose { type nat hook postrouting priority 100;",
                *posing,
                " }",
                "}",
            ]
        )
        subprocess.run(self.router.command("nft", "-f", "-"), input=ruleset, text=True, check=True)


def _port(machine: Machine) -> str:
    """The router's interface to it."""
    return f"to{machine.number}"


def _forwarder(machine: Machine, router: Machine, lossless: bool) -> subprocess.Popen[bytes]:
    names = [str(machine.pid), "net0", str(router.pid), _port(machine), "whole" if lossless else "packets"]
    forwarder = subprocess.Popen(
        [sys.executable, "-ISE", str(HERE / "tun_forwarder.py"), *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert forwarder.stdout is not None
    assert forwarder.stdout.read(1) == b"."
    return forwarder


def _namespace(pid: int | str) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    return ""


def _processes_in(namespace: str) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and namespace and _namespace(folder.name) == namespace:
            yield int(folder.name)


def _sweep() -> None:
    """End what ran on machines of tests that are gone, their holders with them."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if folder.name.isdecimal():
                words = (folder / "environ").read_bytes().split(b"\0")
                owner = next((w for w in words if w.startswith(OWNER.encode() + b"=")), None)
                if owner and not Path(f"/proc/{int(owner.partition(b'=')[2])}").exists():
                    os.kill(int(folder.name), signal.SIGKILL)


def _runs(pid: int) -> bool:
    """It is neither stopped nor over."""
    try:
        states = [task.read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # it ended meanwhile
        return False
    return any(state not in "TtZX" for state in states)
