"""One module per API: attrs classes and nothing else."""
