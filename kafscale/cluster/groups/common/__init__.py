"""Values of groups of every protocol: `events` and stored values, `settings` and the bound on memory."""
