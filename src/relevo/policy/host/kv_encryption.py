"""Whether KV travels encrypted between boxes: always where the processor does it nearly as fast as it sends.

Pure: what was measured is given (kv.encryption_rate).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from relevo.core.errors import SettingsError

LEAST_FRACTION = 0.8  # of the plain rate
ASSUMED_INTERFACE = 1.25e9  # bytes/s of a card that does not say, as virtual ones do not: 10 Gbit/s


class KVEncryption(StrEnum):
    """`--kv-encryption`."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingRates:
    """Bytes/s that one core of this machine sends or receives. `interface`: of the network card; 0: it does not say."""

    plain: float
    encrypted: float
    interface: float = 0.0

    def wanted(self, num_cores: int) -> float:
        """What would be sent without encryption."""
        return min(self.plain * num_cores, self.interface or ASSUMED_INTERFACE)

    def suffice(self, num_cores: int) -> bool:
        """Encryption costs next to nothing."""
        return self.encrypted * num_cores >= LEAST_FRACTION * self.wanted(num_cores)

    def best_with(self, other: SendingRates) -> SendingRates:
        """Of two measurements of one machine: what was slower was disturbed."""
        plain, encrypted = max(self.plain, other.plain), max(self.encrypted, other.encrypted)
        return SendingRates(plain=plain, encrypted=encrypted, interface=other.interface)


@dataclass(frozen=True, slots=True)
class EncryptionChoice:
    encrypts: bool
    told: str  # one line for the log


def choose_encryption(asked: KVEncryption, rates: SendingRates, num_cores: int) -> EncryptionChoice:
    """`num_cores`: that streams of one link can use. Raises SettingsError where `auto` has no good answer."""
    encrypted, wanted = rates.encrypted * num_cores, rates.wanted(num_cores)
    figures = f"{_gb(encrypted)} encrypted, {_gb(wanted)} plain"
    if asked is KVEncryption.OFF:
        return EncryptionChoice(
            False,
            "KV travels unencrypted between boxes (--kv-encryption off): who can read or change the network between "
            "them can read and change prompts' KV; workers are still known by their certificates",
        )
    if asked is KVEncryption.ON or rates.suffice(num_cores):
        return EncryptionChoice(True, f"KV travels encrypted between boxes (AES-128-GCM): {figures}")
    raise SettingsError(
        f"this processor sends KV at {figures}, which is below {LEAST_FRACTION:.0%}; write --kv-encryption on to have "
        "it encrypted at that rate, or --kv-encryption off if no stranger reaches the network between the boxes"
    )


def _gb(rate: float) -> str:
    return f"{rate / 1e9:.2f} GB/s"
