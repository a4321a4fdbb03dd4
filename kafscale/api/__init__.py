"""One module per API key, and the table from which ApiVersions is built."""
