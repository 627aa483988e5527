"""The words every other package speaks: plain data, Protocols and errors. Standard library only."""
