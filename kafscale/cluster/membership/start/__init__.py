"""Starts a broker before it serves: `starting` claims the bucket or joins its brokers; `member` is the result."""
