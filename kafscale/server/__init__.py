"""Listeners, connections and the admin HTTP endpoint. Decides nothing about data."""
