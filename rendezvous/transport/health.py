"""The standard health service of gRPC, for probes."""

import asyncio
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

from .channel_options import SERVICE

NO_SENSE = "invalid request"
"""Response to an invalid request, here and in ``server``: gRPC writes a traceback if a deserializer
raises after the client has disconnected."""


class Health(grpc.GenericRpcHandler):
    """The standard health service, created with the first request: most masters get none."""

    _PREFIX = "/grpc.health.v1.Health/"

    def __init__(self) -> None:
        self._handler: Any = None

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call to this service; None for other calls."""
        if not handler_call_details.method.startswith(self._PREFIX):
            return None
        if self._handler is None:
            self._handler = self._load()
        return self._handler.service(handler_call_details)

    def _load(self) -> Any:
        servicer = health.aio.HealthServicer()
        serving = servicer.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        self._serving = asyncio.ensure_future(serving)  # runs before the call does

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
