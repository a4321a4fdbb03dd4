"""Read a whole namespace and report what is wrong (`verification`) or how much it takes (`usage`). Changes nothing.

Entered by the commands `kafscale verify` and `kafscale storage`, beside a broker or without one.
"""
