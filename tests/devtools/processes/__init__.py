"""Real broker processes, loads on them, and attacks."""
