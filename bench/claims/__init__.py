"""The claims of the project's sources, each as an experiment: the feature on against off, in one run on one machine.

    python -m bench.claims              all rows
    python -m bench.claims k1 k2        some

Prints a table with the source's figure beside ours, writes JSON and plots to bench/results, and makes
docs/benchmarks/README.md of them. One module a row, named as the row (`k1.py`), with a `CLAIM`; a module that is there
is in the table, nothing registers it. Where machines and moments differ, variants alternate in rounds and medians are
told; where the clock is simulated, the module says so.
"""
