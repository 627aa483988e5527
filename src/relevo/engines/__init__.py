"""Engines that are not ours, reached over HTTP: each is a worker behind a link of the gateway."""
