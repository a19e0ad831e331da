"""Metrics for Prometheus: requests and their times, verdicts and p-values, the queue, images per pass."""

from __future__ import annotations

import time
from collections.abc import Iterator

from fastapi import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from dissensus.detection.monitor import Monitor
from dissensus.detection.verdicts import Verdict
from dissensus.serve.asgi import App, Message, Receive, Scope, Send
from dissensus.serve.service import Service

PATHS = ("/api/predict", "/api/ask", "/api/health", "/api/ready", "/api/schema", "/metrics")
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
P_VALUES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


class Metrics:
    """What a service does, in a registry of its own; it is one of the service's observers."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "dissensus_requests", "Requests by path and status.", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "dissensus_request_seconds", "Time of requests to the API.", ["path"], buckets=SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self.verdicts = Counter(
            "dissensus_verdicts", "Images by verdict at the calibrated rate.", ["verdict"], registry=self.registry
        )
        self.p_values = Histogram(
            "dissensus_p_value", "P-values: uniform on ID images.", buckets=P_VALUES, registry=self.registry
        )
        self.registry.register(_Queue(service))
        if service.monitor is not None:
            self.registry.register(_Watch(service.monitor))
        service.observers.append(self.observe)

    def observe(self, verdict: Verdict) -> None:
        """Count a verdict."""
        kind = "unreadable" if verdict.error is not None else verdict.verdict or "none"
        self.verdicts.labels(kind).inc()
        if verdict.p_value is not None:
            self.p_values.observe(verdict.p_value)

    async def page(self) -> Response:
        """Return the page that Prometheus reads."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    def around(self, app: App) -> App:
        """Return the application with its requests counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            status, start = 500, time.perf_counter()

            async def noted(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            try:
                await app(scope, receive, noted)
            finally:
                path = scope["path"] if scope["path"] in PATHS else "other"
                self.requests.labels(path, str(status)).inc()
                if path.startswith("/api/"):
                    self.seconds.labels(path).observe(time.perf_counter() - start)

        return counted


class _Queue(Collector):
    """The state of a service's queue at the moment."""

    def __init__(self, service: Service) -> None:
        self.batcher = service.batcher

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the metrics."""
        batcher = self.batcher
        yield GaugeMetricFamily("dissensus_queue_images", "Images that wait for a pass.", batcher.waiting)
        yield CounterMetricFamily("dissensus_passes", "Passes of the trunk.", batcher.passes)
        yield CounterMetricFamily("dissensus_images", "Images in these passes.", batcher.items)


class _Watch(Collector):
    """Whether what comes in is still what the detector was calibrated on: alert on dissensus_watch_alarm."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics."""
        for name, value in self.monitor.metrics().items():
            yield GaugeMetricFamily(f"dissensus_watch_{name}", "The monitor of drift: see docs/watch.md.", value)
