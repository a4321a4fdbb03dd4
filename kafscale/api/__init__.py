"""One module per API key, in rooms that do not know each other, and the table from which ApiVersions is built.

Each module has the name of its API and opens with the served versions and their changes: Fetch is in `records.fetch`. A
handler checks its request, asks `kafscale.log` and `kafscale.cluster`, and makes the response. All handlers share
`handling`. The broker enters by `table` and `handling`.
"""
