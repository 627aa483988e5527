"""What the keys do and what the columns mean."""

from __future__ import annotations

HELP = """\
tab, 1 2 3 4   the table that the keys act on: workers, requests,
               sessions, decisions       arrows, page up and down
d   drain the worker under the cursor: it takes nothing new, ends or
    hands on what it runs, and is started anew (needs an admin key)
w   why the request under the cursor took its time (also Enter)
s   sort by the next column             /   show rows with a text
p   pause what is shown                 q   quit

Workers
RUN, WAIT   continuations that decode; requests that wait for room
KV CACHE    blocks that running requests hold, of all
HIT         prompt tokens found in its cache, of those looked up
TOK/S       prompt tokens computed and tokens drawn per second
BUSY        of the time, in steps
LIMIT       of what its hardware can do: ops multiplied (prefill) or
            memory read (decode), whichever is used more
ITL         gaps between tokens of its streams: median and p99, ms
!           steps or gaps half as long again as those of its like
A dash is what is not known: too few samples, or no limit measured.

Requests   those that run (▶ where they are) and the slowest of the
           last ten minutes, with what made them slow
Sessions   HOME: where the last request decodes; CACHED: of its prompt
"""
