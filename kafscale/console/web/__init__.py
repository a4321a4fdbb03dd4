"""The application of all pages, and the server that runs it."""
