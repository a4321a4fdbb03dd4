"""Settings and limits (being built)."""
