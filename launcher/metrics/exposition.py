"""Writes samples in the formats of Prometheus, with ``prometheus_client``."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from .catalogue import METRICS, Samples


class _Families(Collector):
    """Samples as a collector of ``prometheus_client``."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that have samples, in the order of the catalogue."""
        for metric in METRICS:
            samples = self._samples.get(metric)
            if not samples:
                continue
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for labels, value in samples.items():
                family.add_metric(labels, value)
            yield family


_OPENMETRICS = "application/openmetrics-text"


def written(samples: Samples, accept: str) -> tuple[bytes, str]:
    """Return samples as text, and its content type.

    ``choose_encoder`` raises for an invalid ``accept`` header, so only OpenMetrics is recognized.
    """
    kinds = [one.partition(";")[0].strip().lower() for one in accept.split(",")]
    wanted = f"{_OPENMETRICS}; version=1.0.0" if _OPENMETRICS in kinds else ""
    encode, content_type = choose_encoder(wanted)
    return encode(_Families(samples)), content_type
