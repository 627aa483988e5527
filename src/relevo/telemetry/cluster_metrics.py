"""Rows of `metric_table` that the node process of a gateway's box tells: name, kind, labels, meaning, and values of the
last label where they are known."""

from __future__ import annotations

from relevo.policy.cluster.checks import Denial
from relevo.policy.cluster.refusals import Refusal

CLUSTER_METRICS: tuple[tuple[str, str, tuple[str, ...], str, tuple[str, ...]], ...] = (
    (
        "relevo:nodes",
        "gauge",
        ("state",),
        "Machines of the cluster as this box knows them, itself included, by state; `gone` ones may come back.",
        (),
    ),
    (
        "relevo:nodes_gone_total",
        "counter",
        (),
        "How often a machine of the cluster was given up or left, since the node process of this box started.",
        (),
    ),
    (
        "relevo:node_joins_denied_total",
        "counter",
        ("reason",),
        "Joins that this head denied, by what did not fit.",
        tuple(Denial),
    ),
    (
        "relevo:node_heartbeat_seconds",
        "gauge",
        ("node",),
        "Round trip of a node's last heartbeat, as it measured it.",
        (),
    ),
    (
        "relevo:node_fences_total",
        "counter",
        ("node",),
        "How often a node let go of everything because no head had acknowledged it.",
        (),
    ),
    (
        "relevo:node_certificate_left",
        "gauge",
        ("node",),
        "Of the life of the certificate that a node was last seen with: 1 is new, 0 over; renewed at 0.5.",
        (),
    ),
    (
        "relevo:control_port_refused_total",
        "counter",
        ("reason",),
        "Connections that the control port of this box refused, by reason.",
        tuple(Refusal),
    ),
)
