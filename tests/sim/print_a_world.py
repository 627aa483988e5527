"""Prints the decisions and results of a small world with two gateways, preemptions, evictions and a worker's death."""

from __future__ import annotations

import sys

from worlds import chat, config, outline, split

from relevo.core.decisions import DecisionLines
from relevo.sim.config import Fault, FaultKind
from relevo.sim.world import World

if __name__ == "__main__":
    faults = (Fault(at_s=1.0, kind=FaultKind.KILL, target="decode-0"),)
    world = config(split(2, 2, num_blocks=50), 2, seed=int(sys.argv[1]), faults=faults)
    result = World(world, chat(80, 30.0), decisions=DecisionLines(sys.stdout.write)).run()
    sys.stdout.write(f"{outline(result)}\n")
