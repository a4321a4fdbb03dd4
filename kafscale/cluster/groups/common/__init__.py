"""Values of groups of every protocol: `events`, `records`, `settings`, and the bound on memory (`state_bytes`)."""
