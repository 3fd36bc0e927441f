"""Which member of the group gets which partitions: evenly, moving as few as possible, retries beside their requests.

Run by the member that leads the group. It weighs nothing but numbers of partitions: neither load nor memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

__all__ = ["assignor_class"]

_RETRY: Final = ".retry"
"""End of a retry topic's name; what stands before it is the request topic's (`consumers.route`)."""


class _Assignor(StickyPartitionAssignor):  # type: ignore[misc] # aiokafka ships no types
    """aiokafka's sticky assignor over request topics alone.

    Left to itself it counts a retry partition as much as one of requests, and may give one node all requests and
    another the empty retry topics.
    """

    name = "headrace-sticky"

    @classmethod
    def assign(cls, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        topics = {topic for member in members.values() for topic in member.subscription}
        following = {topic for topic in topics if topic.endswith(_RETRY) and topic.removesuffix(_RETRY) in topics}
        leading = {
            id_: ConsumerProtocolMemberMetadata(
                member.version, [topic for topic in member.subscription if topic not in following], member.user_data
            )
            for id_, member in members.items()
        }
        decided = super().assign(cluster, leading)
        shares = {id_: {topic: list(numbers) for topic, numbers in one.assignment} for id_, one in decided.items()}
        owners = {
            (topic, at): id_ for id_, share in shares.items() for topic, numbers in share.items() for at in numbers
        }
        for topic in sorted(following):
            subscribed = sorted(id_ for id_, member in members.items() if topic in member.subscription)
            for at in sorted(cluster.partitions_for_topic(topic) or ()):
                # More partitions than the request topic has: the rest go round.
                owner = owners.get((topic.removesuffix(_RETRY), at), subscribed[at % len(subscribed)])
                shares[owner].setdefault(topic, []).append(at)
        return {
            id_: ConsumerProtocolMemberAssignment(cls.version, sorted(share.items()), b"")
            for id_, share in shares.items()
        }

    @classmethod
    def parse_member_metadata(cls, metadata: Any) -> Any:
        """What a member held before, without what follows."""
        parsed = super().parse_member_metadata(metadata)
        kept: list[TopicPartition] = [tp for tp in parsed.partitions if tp.topic in parsed.subscription]
        return parsed._replace(partitions=kept)


def assignor_class() -> Any:
    """A class for one consumer: it keeps what the consumer holds as attributes of its own."""
    return type("Assignor", (_Assignor,), {"member_assignment": None, "generation": -1})
