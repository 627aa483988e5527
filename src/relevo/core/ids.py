"""Identifiers. Each is a plain value; `NewType` keeps them from being mixed up."""

from __future__ import annotations

from typing import NewType

RequestId = NewType("RequestId", str)
WorkerId = NewType("WorkerId", str)
TokenId = int
BlockId = int
BlockHash = bytes  # 16 bytes, see policy.prefix_cache
