"""Readers of public request traces, one file per family of formats. `files.read_trace_file` is the way in."""
