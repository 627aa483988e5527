"""How far models and simulator are off what was measured: one module per rung, each gives rows of errors."""
