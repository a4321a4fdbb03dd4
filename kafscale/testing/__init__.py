"""Test tools for programs that use Kafka: a broker in the background, with faults on request.

    pytest_plugin       fixtures, found by pytest once KafScale is installed
    background_broker   a whole broker in a thread, on its own port; `broker_faults` injects faults into it
    secured_broker      the same with TLS, users and access control lists; `certificates` makes its certificates
    faulty_store, tcp_proxy, disk, metadata   fakes that fail on request

The rest of the product doesn't import this package.
"""
