"""Real broker processes, and loads on them."""
