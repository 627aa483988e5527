"""Several gateway processes on one port: what each is told, from what one alone would be. Pure."""

from __future__ import annotations

import itertools

import msgspec

from relevo.build.configs import GatewayAddress, GatewayConfig, ServedModelConfig
from relevo.core.errors import SettingsError

_SHARED_OUT = (
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "max_num_queued_batch_reqs",
)  # of a model, kept without talk


def gateway_configs(config: GatewayConfig, num_gateways: int, runtime_folder: str) -> tuple[GatewayConfig, ...]:
    """One per process, in the order of their names. Bounds on what waits are divided, their sum is what was asked for.

    Raises SettingsError if a bound is too small to divide.
    """
    if num_gateways == 1:
        return (config,)
    for model, name in itertools.product(config.models, _SHARED_OUT):
        if 0 < (bound := getattr(model, name)) < num_gateways:
            flag = f"--{name.replace('_', '-')}"
            raise SettingsError(
                f"{flag} {bound} cannot be divided among --gateways {num_gateways}; raise it to {num_gateways} or more"
            )
    addresses = [
        GatewayAddress(gateway_id=f"gateway-{index}", path=f"{runtime_folder}/gateway-{index}.sock")
        for index in range(num_gateways)
    ]
    return tuple(
        msgspec.structs.replace(
            config,
            gateway_id=own.gateway_id,
            gossip_path=own.path,
            peers=tuple(address for address in addresses if address is not own),
            models=tuple(_share_of(model, index, num_gateways) for model in config.models),
        )
        for index, own in enumerate(addresses)
    )


def _share_of(model: ServedModelConfig, index: int, count: int) -> ServedModelConfig:
    return msgspec.structs.replace(model, **{name: share(getattr(model, name), index, count) for name in _SHARED_OUT})


def share(total: int, index: int, count: int) -> int:
    """Of `total`, what the one at `index` of `count` gets; the shares add up to it and differ by one at most."""
    return total // count + (index < total % count)
