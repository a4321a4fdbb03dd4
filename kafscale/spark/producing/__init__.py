"""Produces rows of Spark by columns: Arrow columns become record batches, without an object for each record."""
