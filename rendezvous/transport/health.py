"""The standard health service of gRPC, for probes."""

from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

from .channel_options import SERVICE

NO_SENSE = "invalid request"
"""Response to an invalid request, here and in ``server``: gRPC writes a traceback if a deserializer
raises after the client has disconnected."""


async def health_handler() -> Any:
    """Return the handler of the service, which reports that the master serves."""
    servicer = health.aio.HealthServicer()
    await servicer.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)

    def read(data: bytes) -> health_pb2.HealthCheckRequest:
        try:
            return health_pb2.HealthCheckRequest.FromString(data)
        except DecodeError:
            return health_pb2.HealthCheckRequest(service=NO_SENSE)  # an unknown service

    formats: dict[str, Any] = {
        "request_deserializer": read,
        "response_serializer": health_pb2.HealthCheckResponse.SerializeToString,
    }
    methods = {
        "Check": grpc.unary_unary_rpc_method_handler(servicer.Check, **formats),
        "Watch": grpc.unary_stream_rpc_method_handler(servicer.Watch, **formats),
    }
    return grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods)
