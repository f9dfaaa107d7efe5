# SPDX-License-Identifier: Apache-2.0
"""A minimal OpenTelemetry collector for tests that stores the received data."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import grpc


class Collector:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._received: list[bytes] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        export: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
            self._export
        )  # in wire format
        handler = grpc.method_handlers_generic_handler(
            "opentelemetry.proto.collector.trace.v1.TraceService", {"Export": export}
        )
        self._server.add_generic_rpc_handlers((handler,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Collector:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(0).wait()

    def _export(self, request: bytes, _: grpc.ServicerContext) -> bytes:
        with self._lock:
            self._received.append(request)
        return b""

    def has(self, *parts: bytes) -> bool:
        """Return whether all parts have arrived, in any order: names, or IDs of traces and spans."""
        with self._lock:
            everything = b"".join(self._received)
        return all(part in everything for part in parts)
