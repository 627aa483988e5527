"""`relevo ray serve|up|down`: Ray places the machines' supervisors; the cluster stays Relevo's own."""

from __future__ import annotations

import inspect
import signal
import time
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from relevo.build.ledger import data_folder
from relevo.cli.http import fetch
from relevo.cluster.launchers.ray import RayLauncher
from relevo.cluster.launchers.seats import HeadSeat, NodeSeat, Room, SeatState, node_seats
from relevo.core.errors import SettingsError, StartError
from relevo.telemetry.log import say
from relevo.telemetry.progress import shown

app = typer.Typer(help="A cluster on the machines of a Ray cluster.", no_args_is_help=True)

_LOOK_S = 1.0
_ROLES = ("prefill", "decode", "unified")

Address = Annotated[str, typer.Option(help="Of the Ray cluster, as `ray start` printed it; auto: of this machine.")]
Name = Annotated[str, typer.Option(help="Of this server on the Ray cluster.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be placed where."""

    head: HeadSeat
    nodes: tuple[tuple[NodeSeat, Room], ...]
    address: str
    name: str
    strategy: str
    place_s: float
    start_s: float

    def launcher(self, *, is_detached: bool) -> RayLauncher:
        return RayLauncher(
            address=self.address,
            name=self.name,
            strategy=self.strategy,
            place_s=self.place_s,
            is_detached=is_detached,
        )


def asked(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="As for `relevo serve`; a path has to be there on every machine.")
    ],
    prefill: Annotated[int, typer.Option(min=0, help="Nodes that compute prompts.")] = 0,
    decode: Annotated[int, typer.Option(min=0, help="Nodes that decode.")] = 0,
    nodes: Annotated[int, typer.Option(min=0, help="Nodes that do both.")] = 0,
    address: Address = "auto",
    name: Name = "relevo",
    cpus: Annotated[float, typer.Option(min=0, help="Of a node, as Ray counts them.")] = 1.0,
    gpus: Annotated[float, typer.Option(min=0, help="Of a node, as Ray counts them.")] = 0.0,
    resource: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE:NAME=AMOUNT", help="Of Ray's own resources, such as prefill:fast=1. Repeatable."),
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="Of the placement group: STRICT_SPREAD, SPREAD, PACK or STRICT_PACK.")
    ] = "STRICT_SPREAD",
    host: Annotated[str, typer.Option(help="Where the gateway listens on the head's machine.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of the gateway.")] = 8000,
    cluster_port: Annotated[
        int, typer.Option(min=1, max=65534, help="Control port of the head; nodes take the next one.")
    ] = 7000,
    gateway_setting: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of the gateway, such as require_keys=true. Repeatable."),
    ] = None,
    node_setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of nodes, such as cores=0,1. Repeatable."),
    ] = None,
    place_timeout_s: Annotated[float, typer.Option(help="How long Ray may take to find places.")] = 60.0,
    start_timeout_s: Annotated[float, typer.Option(help="How long until requests are served.")] = 1800.0,
    cluster_dir: Annotated[str | None, typer.Option(help="Folder of the authority on the head's machine.")] = None,
) -> Asked:
    """Raises SettingsError."""
    if strategy not in ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK"):
        raise SettingsError(f"--strategy {strategy} is none of Ray's: STRICT_SPREAD, SPREAD, PACK or STRICT_PACK")
    if port in (cluster_port, cluster_port + 1):
        raise SettingsError(
            f"--port {port} and --cluster-port {cluster_port}, with the next one for nodes, have to differ"
        )
    seats = node_seats(
        tuple(zip(_ROLES, (prefill, decode, nodes), strict=True)),
        control_port=cluster_port + 1,
        settings=tuple(node_setting or ()),
    )
    extra = _resources(resource or [])
    return Asked(
        head=HeadSeat(
            model=model,
            folder=cluster_dir or str(data_folder(None) / "ray" / name),
            http_host=host,
            http_port=port,
            control_port=cluster_port,
            flags=tuple(map(_flag, gateway_setting or ())),
        ),
        nodes=tuple((seat, Room(num_cpus=cpus, num_gpus=gpus, resources=extra.get(seat.role, {}))) for seat in seats),
        address=address,
        name=name,
        strategy=strategy,
        place_s=place_timeout_s,
        start_s=start_timeout_s,
    )


def _with_options(run: Callable[[Asked], None]) -> Callable[..., None]:
    """A command that has the options of `asked`."""

    def command(**values: Any) -> None:
        run(asked(**values))

    hints = typing.get_type_hints(asked, include_extras=True)
    parameters = [
        each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for each in inspect.signature(asked).parameters.values()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__doc__ = run.__doc__
    return command


def _serve(of: Asked) -> None:
    """Serve until Ctrl-C: one node per machine of a Ray cluster, and a gateway that shares the first one's machine."""
    launcher = of.launcher(is_detached=False)
    stopping: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _frame: stopping.append(received))
    try:
        launcher.launch(of.head, of.nodes)
        if _until_served(launcher, of.start_s, lambda: bool(stopping)):
            say(f"ready: {launcher.url()}/v1  (Ctrl-C stops)")
        _tell_changes(launcher, lambda: bool(stopping))
        say("stopping: running requests may finish")
    finally:
        launcher.end()


def _up(of: Asked) -> None:
    """As `serve`, but return when it serves and leave it to Ray; `relevo ray down` ends it."""
    launcher = of.launcher(is_detached=True)
    launcher.launch(of.head, of.nodes)
    try:
        _until_served(launcher, of.start_s, lambda: False)
    except BaseException:
        launcher.end()
        raise
    say(f"ready: {launcher.url()}/v1  (relevo ray down --name {of.name} ends it)")


app.command("serve")(_with_options(_serve))
app.command("up")(_with_options(_up))


@app.command()
def down(address: Address = "auto", name: Name = "relevo") -> None:
    """Drain and end what `up` has brought up."""
    launcher = RayLauncher(address=address, name=name)
    if not launcher.is_up:
        raise SettingsError(f"no server named {name} is up on the Ray cluster at {address}; look at `ray list actors`")
    launcher.end()
    say(f"{name} has ended")


def _flag(setting: str) -> str:
    """NAME=VALUE as a flag of `relevo serve`. Raises SettingsError."""
    name, equals, value = setting.partition("=")
    flag = name.strip().replace("_", "-")
    if not equals or not flag.replace("-", "").isalnum():
        raise SettingsError(f"--gateway-setting {setting} is not NAME=VALUE; write it like require_keys=true")
    return {"true": f"--{flag}", "false": f"--no-{flag}"}.get(value.lower(), f"--{flag}={value}")


def _resources(texts: Sequence[str]) -> dict[str, dict[str, float]]:
    """By role. Raises SettingsError."""
    by_role: dict[str, dict[str, float]] = {}
    for text in texts:
        role, _, rest = text.partition(":")
        name, _, amount = rest.partition("=")
        try:
            if role not in _ROLES or not name:
                raise ValueError
            by_role.setdefault(role, {})[name] = float(amount)
        except ValueError:
            raise SettingsError(f"--resource {text} is not ROLE:NAME=AMOUNT; write it like prefill:fast=1") from None
    return by_role


# ---- how it goes -----------------------------------------------------------------------------------------------------


def _until_served(launcher: RayLauncher, timeout_s: float, is_over: Callable[[], bool]) -> bool:
    """False: it is being stopped. Raises StartError in the words of what failed."""
    deadline_s = time.monotonic() + timeout_s
    with shown() as progress:
        progress.begin("starting")
        while not is_over():
            states = launcher.states()
            for state in states:
                if state.state in ("failed", "ended"):
                    raise StartError(f"{state.name} on {state.host}: {state.reason or 'it has ended'}")
            if _serves(launcher.url()):
                return True
            if time.monotonic() > deadline_s:
                raise StartError(f"nothing is served after {timeout_s:g} s: {_told(states)}")
            progress.rename(_told(states))
            time.sleep(_LOOK_S)
    return False


def _tell_changes(launcher: RayLauncher, is_over: Callable[[], bool]) -> None:
    """Until it is stopped."""
    before: dict[str, str] = {}
    while not is_over():
        for state in launcher.states():
            told = _told([state])
            if before.setdefault(state.name, told) != told:
                say(f"{told} on {state.host}" if state.host else told)
                before[state.name] = told
        time.sleep(_LOOK_S)


def _serves(url: str) -> bool:
    try:
        status, _ = fetch(f"{url}/ready")
    except (OSError, ValueError):
        return False
    return status == 200


def _told(states: Sequence[SeatState]) -> str:
    return "; ".join(f"{each.name} {each.state} {each.reason}".rstrip() for each in states)
