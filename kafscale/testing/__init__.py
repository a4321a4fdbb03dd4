"""Test tools for programs that use Kafka or S3: a broker in the background, faults on request, and a stand-in for S3.

    pytest_plugin       fixtures, found by pytest once KafScale is installed
    background_broker   a whole broker in a thread, on its own port; `broker_faults` injects faults into it
    secured_broker      the same with TLS, users and access control lists; `certificates` makes its certificates
    faulty_store, tcp_proxy, disk, metadata   fakes that fail on request
    s3_server           a server that speaks S3, with adjustable latency and rate; `s3_service` is S3 without a network

The rest of the product doesn't import this package.
"""
