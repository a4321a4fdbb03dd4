"""Checkers of what clients saw and of what became durable."""
