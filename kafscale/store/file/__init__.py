"""A directory as a bucket. Entered by `store.FileStore`; `directory` blocks, `open_files` is for sendfile."""
