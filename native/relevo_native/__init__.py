"""Relevo's CPU kernels. `_native` is the extension module; nothing here knows models, requests or scheduling."""
