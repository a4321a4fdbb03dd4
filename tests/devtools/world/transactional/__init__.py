"""Transactional clients of a simulated world, and mutations that it must detect."""
