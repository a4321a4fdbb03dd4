"""Test tools for programs that use Kafka: a broker in the background, with faults on request.

The rest of the product doesn't import this package. See docs/how-to/test-your-program.md.
"""
