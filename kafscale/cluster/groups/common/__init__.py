"""Values and services that groups of both protocols share."""
