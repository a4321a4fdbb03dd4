"""The composition root (being built)."""
