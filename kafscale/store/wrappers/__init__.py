"""Stores around a store, one job each. `opening` puts them in their order."""
