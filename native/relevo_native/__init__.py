"""Relevo's CPU kernels. `_native` is the extension module; nothing here knows models, requests or scheduling."""

__version__ = "0.1.0"  # that of the relevo it belongs to: both are released together
