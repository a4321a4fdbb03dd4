"""Regular expressions of clients, within a budget: `patterns`."""
