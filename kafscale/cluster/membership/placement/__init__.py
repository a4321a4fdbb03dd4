"""Decides which broker leads which partition."""
