"""A bucket in S3. Entered by `store.S3Store`.

requests, replies, multipart, sigv4   sans-IO: what is asked, what is answered, and how it is signed
credentials, auth, signing            whose it is, refreshed before it expires
transport, http_connection            httpx's transport on trio and h11, with a pool of our own
"""
