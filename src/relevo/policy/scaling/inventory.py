"""The devices that can be had, as a person writes them: `8xH100@2.9/h, 16xA100@1.2/h`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from relevo.core.errors import SettingsError, StartError
from relevo.policy.perf.devices import DEVICES, Device, device

MOST_DEVICES = 4096  # of one kind; arbitrary
_HOLDING = re.compile(r"(\d{1,9})\s*[xX]\s*([A-Za-z][\w-]*)(?:\s*@\s*([\d.]+)\s*(/\s*\w+)?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """So many devices of one kind."""

    device: Device
    num_devices: int
    price_per_h: float | None = None  # of one device


def parse_inventory(text: str) -> tuple[Holding, ...]:
    """Raises SettingsError that says what to write. Either every kind has a price or none."""
    holdings: list[Holding] = []
    for word in text.split(","):
        holding = _holding(word.strip())
        if any(holding.device is other.device for other in holdings):
            raise SettingsError(f"--devices names {holding.device.name} twice; write it once, with their sum")
        holdings.append(holding)
    if 0 < sum(holding.price_per_h is None for holding in holdings) < len(holdings):
        free = next(holding.device.name for holding in holdings if holding.price_per_h is None)
        raise SettingsError(f"--devices: {free} has no price and others have one; write 8x{free}@2.9/h")
    return tuple(holdings)


def _holding(word: str) -> Holding:
    match = _HOLDING.fullmatch(word)
    if match is None:
        raise SettingsError(f"--devices: {word[:40]!r} is not understood; write 8xH100 or 8xH100@2.9/h")
    count, name, price, unit = match.groups()
    if not 1 <= int(count) <= MOST_DEVICES:
        raise SettingsError(f"--devices: {word[:40]!r} is {count} devices; give 1 to {MOST_DEVICES}")
    return Holding(device=_device(name), num_devices=int(count), price_per_h=_price(word, price, unit))


def _price(word: str, price: str | None, unit: str | None) -> float | None:
    if price is None:
        return None
    if unit is None or unit.replace(" ", "") != "/h":
        raise SettingsError(f"--devices: the price of {word[:40]!r} is not per hour; write it as @{price}/h")
    try:
        per_h = float(price)
    except ValueError:
        per_h = -1.0
    if not 0.0 < per_h < 1e6:
        raise SettingsError(f"--devices: the price of {word[:40]!r} is no amount above 0; write it as @2.9/h")
    return per_h


def _device(name: str) -> Device:
    try:
        return device(name)
    except StartError as error:
        near: Sequence[str] = get_close_matches(name.lower(), DEVICES, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingsError(f"--devices: {error.message}{hint}") from None
