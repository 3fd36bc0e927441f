"""One model as the node sees it: its configuration, its topics, and the requests that wait for room in its queue."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from gpu_runtime.request import Request
from schemas.model import ModelConfig
from schemas.record import Topics

__all__ = ["Route", "TopicNeed", "route_for", "topics_needed"]


class TopicNeed(NamedTuple):
    """A topic that must exist before the node subscribes. ``config`` holds broker topic settings."""

    name: str
    partitions: int
    config: dict[str, str]


class Route:
    """
    Attributes:
        requests, results, retry, dead: topic names.
        digest: tells configurations apart; see `schemas.registry.HeldModel`.
        waiting: decoded requests that found the model's queue full; while there are any, the model's partitions are
            not read, so that the rest of the backlog waits in Kafka.
    """

    __slots__ = ("config", "dead", "digest", "model", "requests", "results", "retry", "waiting")

    def __init__(self, config: ModelConfig, *, requests: str, results: str, retry: str, dead: str) -> None:
        self.config = config
        self.digest = hashlib.sha256(config.model_dump_json(exclude={"parameters"}).encode()).hexdigest()[:12]
        self.model = config.name
        self.requests = requests
        self.results = results
        self.retry = retry
        self.dead = dead
        self.waiting: deque[Request] = deque()


def route_for(config: ModelConfig, topics: Topics) -> Route:
    """Names of the record contract unless the model overrides them; retries follow the request topic's name."""
    own = config.topics
    return Route(
        config,
        requests=own.requests or topics.requests(config.name),
        results=own.results or topics.results(config.name),
        retry=f"{own.requests}.retry" if own.requests else topics.retry(config.name),
        dead=own.dead or topics.dead(config.name),
    )


def topics_needed(routes: Sequence[Route], topics: Topics, *, partitions: int) -> list[TopicNeed]:
    """Every topic that nodes with these routes read or write."""
    needs = [
        TopicNeed(topics.registry, 1, {"cleanup.policy": "compact"}),
        TopicNeed(topics.control, 1, {}),
    ]
    for route in routes:
        names = (route.requests, route.results, route.retry, route.dead)
        needs.extend(TopicNeed(name, partitions, {}) for name in names)
    return needs
