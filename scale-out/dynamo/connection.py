"""Connections to the gRPC of servers."""

import sys
from pathlib import Path

import grpc


def connector(tls_ca=None):
    """A function that opens channels: to an address, for answers of at most `limit` bytes (-1: any). They use TLS if
    `tls_ca` names the PEM file of the servers' certificate or issuer."""
    credentials = None
    if tls_ca:
        try:
            credentials = grpc.ssl_channel_credentials(Path(tls_ca).read_bytes())
        except OSError as error:
            sys.exit(f"--tls-ca {tls_ca}: {error.strerror}")

    def connect(address, limit=-1):
        options = [("grpc.max_receive_message_length", limit)]
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)

    return connect
