"""The event bus: topics with their latest messages, and the clients that follow them."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from distributed.metrics import time
from distributed.scheduler.outbox import Outbox

#: events remembered per topic
EVENTS_PER_TOPIC = 1000


class EventBus:
    """Topics of one scheduler."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._topics: defaultdict[str, deque[tuple[float, Any]]] = defaultdict(
            lambda: deque(maxlen=EVENTS_PER_TOPIC)
        )
        self._subscribers: defaultdict[str, set[str]] = defaultdict(set)

    def publish(self, topics: Any, msg: Any) -> None:
        """Add a message to one topic or several, and tell who follows them."""
        event = (time(), msg)
        for topic in (topics,) if isinstance(topics, str) else topics:
            self._topics[topic].append(event)
            for client in self._subscribers.get(topic, ()):
                peer = self._outbox.clients.get(client)
                if peer is not None:
                    peer.send({"op": "event", "topic": topic, "event": event})

    def subscribe(self, client: str, topic: str) -> None:
        self._subscribers[topic].add(client)

    def unsubscribe(self, client: str, topic: str) -> None:
        self._subscribers[topic].discard(client)

    def forget_client(self, client: str) -> None:
        for subscribers in self._subscribers.values():
            subscribers.discard(client)

    def get(self, topic: str | None = None) -> Any:
        """Events of one topic, or of all as a dict."""
        if topic is not None:
            return tuple(self._topics.get(topic, ()))
        return {name: tuple(events) for name, events in self._topics.items()}
