"""Benchmarks: one command each (`python -m bench.produce`, `python -m bench.consume`), a table and a JSON file.

A load is sent by a process of its own, over plain sockets, from frames that were encoded beforehand, so that what is
measured is the broker. The broker's CPU time is the figure to compare on a machine that does other things as well.
"""
