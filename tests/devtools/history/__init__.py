"""Checkers of the events that clients saw and of the data that became durable."""
