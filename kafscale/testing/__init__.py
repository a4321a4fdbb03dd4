"""For tests of what talks to Kafka or S3: a broker in the background, faults on request, and a stand-in for S3.

    pytest_plugin       fixtures, found by pytest once KafScale is installed
    background_broker   a whole broker in a thread, on a port of its own; `broker_faults` is what can go wrong with it
    secured_broker      the same with TLS, users and access control lists; `certificates` makes what it shows
    faulty_store, tcp_proxy, disk, metadata   the places where it does
    s3_server           a server that speaks S3, over a network as slow as is wanted

Nothing else of the product imports this package.
"""
