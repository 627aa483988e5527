"""From `relevo serve` to its first token: `relevo bench start`."""
