"""`relevo cluster init|token|revoke|show`: who belongs to a cluster. Running heads notice within a second."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from relevo.build.cluster_folder import cluster_folder, default_node_name
from relevo.cli.database import print_table
from relevo.cli.lifetimes import checked_lifetime_s, shown
from relevo.cluster.enroller import Enroller, another_head, enroller_of, found_cluster
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.identity_folder import write_private
from relevo.cluster.identity_revoked import RevokedList
from relevo.cluster.join_token import VARIABLE, JoinToken
from relevo.cluster.peer import NodeRole
from relevo.core.errors import SettingsError, StartError
from relevo.policy.cluster.lifetimes import MAX_LIFE_S, MIN_LIFE_S
from relevo.policy.cluster.tokens import MAX_TTL_S, utc

app = typer.Typer(name="cluster", help="Machines that serve together: who belongs to them.", no_args_is_help=True)

Dir = Annotated[
    str | None,
    typer.Option("--dir", envvar="RELEVO_CLUSTER_DIR", help="Folder of this box's keys. Default: beside relevo.db."),
]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", envvar="RELEVO_DATA_DIR", help="Folder of relevo.db, as of relevo serve.")
]
Ttl = Annotated[str, typer.Option(help="How long the join token is good for: 30m, 1h, 7d.")]
Out = Annotated[Path | None, typer.Option(help="Write the token to this file, for its user alone, instead.")]


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


@app.command()
def init(
    dir: Dir = None,
    data_dir: DataDir = None,
    name: Annotated[str | None, typer.Option(help="Name of this box in the cluster. Default: the machine's.")] = None,
    certificate_life: Annotated[
        str, typer.Option(help="How long certificates live; they renew themselves at half of it.")
    ] = "7d",
    ttl: Ttl = "1h",
    out: Out = None,
) -> None:
    """Make a cluster: its authority, this box's certificate as its first head, and a join token, which is printed."""
    life_s = checked_lifetime_s(certificate_life, "--certificate-life", MIN_LIFE_S, MAX_LIFE_S)
    ttl_s = _ttl_s(ttl)
    folder = cluster_folder(dir, data_dir)
    enroller = found_cluster(folder, name or default_node_name(), life_s=life_s)
    identity = NodeIdentity.load(folder)
    typer.echo(f"cluster {identity.fingerprint}", err=True)
    typer.echo(
        f"{folder}: key of the authority (ca.key: keep a copy where it is safe), and the certificate of this head, "
        f"{identity.name}",
        err=True,
    )
    _tell(enroller.new_token(ttl_s=ttl_s), out, ttl, "once")


@app.command()
def head(
    dir: Dir = None,
    data_dir: DataDir = None,
    name: Annotated[str | None, typer.Option(help="Name of this box in the cluster. Default: the machine's.")] = None,
) -> None:
    """Make this box one more head of the cluster whose ca.crt, ca.key and tokens.json were brought into its folder."""
    folder = cluster_folder(dir, data_dir)
    another_head(folder, name or default_node_name())
    identity = NodeIdentity.load(folder)
    typer.echo(f"cluster {identity.fingerprint}\n{folder}: the certificate of this head, {identity.name}", err=True)


@app.command()
def token(
    ttl: Ttl = "1h",
    reusable: Annotated[bool, typer.Option("--reusable", help="Any number of nodes may join with it.")] = False,
    name: Annotated[
        str | None, typer.Option(help="Only a node of that name may join with it, in the place of one that has it.")
    ] = None,
    role: Annotated[NodeRole, typer.Option(help="What joins: a node, or a head (another box with gateways).")] = (
        NodeRole.NODE
    ),
    out: Out = None,
    dir: Dir = None,
    data_dir: DataDir = None,
) -> None:
    """Make a join token. It is printed once and cannot be shown again."""
    enroller = enroller_of(cluster_folder(dir, data_dir))
    made = enroller.new_token(ttl_s=_ttl_s(ttl), is_reusable=reusable, name=name or "", role=role)
    _tell(made, out, ttl, "any number of times" if reusable else "once")


@app.command()
def revoke(
    node: Annotated[str, typer.Argument(help="Name of the node, as `relevo cluster show` lists it.")],
    dir: Dir = None,
    data_dir: DataDir = None,
) -> None:
    """Take a node out of the cluster for good: its connections end within seconds, and none is made any more."""
    folder = cluster_folder(dir, data_dir)
    enroller = enroller_of(folder)
    if node == _own_name(folder):
        raise SettingsError(f"{node} is this box; revoke it on another one that has the authority's key (ca.key)")
    enroller.revoke(node)
    typer.echo(
        f"revoked {node}; a head that runs here tells the others within seconds. It may join again with a new token.",
        err=True,
    )


@app.command()
def show(
    format: Annotated[Format, typer.Option(help="table or json.")] = Format.TABLE,
    dir: Dir = None,
    data_dir: DataDir = None,
) -> None:
    """Show this box's certificate, the cluster's fingerprint and, where nodes are enrolled, every node and token."""
    folder = cluster_folder(dir, data_dir)
    identity = NodeIdentity.load(folder)
    enroller = Enroller.load(folder)
    found = _shown(identity, enroller)
    if format is Format.JSON:
        typer.echo(json.dumps(found, indent=1))
        return
    typer.echo(f"cluster {found['fingerprint']}\nthis box {found['name']}, {found['role']}, until {found['expires']}")
    columns = ("name", "role", "state", "enrolled", "issued", "expires", "certificates")
    table = Table(*columns, box=None, pad_edge=False)
    for node in found["nodes"]:
        table.add_row(*(str(node[column]) for column in columns))
    if found["nodes"]:
        print_table(table)
    if not found["signs"]:
        typer.echo("nodes are enrolled on another box; it has their list", err=True)
    elif found["open_tokens"]:
        typer.echo(f"join tokens that are good: {found['open_tokens']}", err=True)


def _own_name(folder: Path) -> str | None:
    """None: this box has no certificate that is good, and may revoke every other."""
    try:
        return NodeIdentity.load(folder).name
    except StartError:
        return None


def _shown(identity: NodeIdentity, enroller: Enroller | None) -> dict[str, Any]:
    now_s = time.time()
    revoked = RevokedList(identity.folder)
    nodes = [] if enroller is None else enroller.nodes()
    return {
        "fingerprint": identity.fingerprint,
        "name": identity.name,
        "role": str(identity.role),
        "expires": utc(identity.own.validity.expires_at_s),
        "signs": enroller is not None,
        "open_tokens": 0 if enroller is None else enroller.num_open_tokens(),
        "nodes": [
            {
                "name": node.name,
                "role": node.role,
                "state": "revoked"
                if revoked.has(node.enrolment_id)
                else "expired"
                if node.expires_at_s <= now_s
                else "valid",
                "enrolled": utc(node.enrolled_at_s),
                "issued": utc(node.issued_at_s),
                "expires": utc(node.expires_at_s),
                "certificates": node.num_certificates,
                "enrolment": node.enrolment_id,
            }
            for node in nodes
        ],
    }


def _ttl_s(text: str) -> int:
    return checked_lifetime_s(text, "--ttl", 1, MAX_TTL_S)


def _tell(token: JoinToken, out: Path | None, ttl: str, times: str) -> None:
    if out is None:
        typer.echo(token.text())
        where = f"put it into a file for --token-file, or into {VARIABLE}"
    else:
        write_private(out.absolute(), token.text().encode("ascii") + b"\n")
        where = f"it is in {out}; bring the file to the other box"
    typer.echo(f"a join token, good for {shown(_ttl_s(ttl))}, {times}; {where}", err=True)
