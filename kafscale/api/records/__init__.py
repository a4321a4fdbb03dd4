"""Calls about records to the leader of a partition: Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

All four find their partition by `kafscale.api.handling.partitions` and ask `kafscale.log` for the rest. The table of
APIs enters here for each, and the dispatcher for what a Fetch holds until its reply is sent (`fetch.FetchReply`). How
records get into a partition is in `kafscale.api.produce`.
"""
