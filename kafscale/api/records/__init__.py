"""Requests to the leader of a partition about its records, except Produce (`kafscale.api.produce`)."""
