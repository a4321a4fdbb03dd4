"""Reading all that a namespace holds, and saying what is wrong (`verification`) or what it takes (`usage`).

Entered by the commands `kafscale verify` and `kafscale storage`, beside a broker or without one. Changes nothing.
"""
