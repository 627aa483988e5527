"""What all tests share: properties are searched for on machines of any speed, so no example fails for being slow."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from kept_folders import remove_kept_folders

settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


def pytest_unconfigure() -> None:
    remove_kept_folders()
