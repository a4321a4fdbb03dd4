"""A bucket in S3. Entered by `store.S3Store`.

requests, replies, sigv4   sans-IO: requests, their answers, and signatures
credentials, auth          whose bucket it is, refreshed before it expires

The HTTP client is `kafscale.http`.
"""
