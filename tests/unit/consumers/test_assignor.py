"""The assignor: even shares of requests, retries beside them, few moves."""

from __future__ import annotations

from typing import Any

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment

from consumers.assignor import assignor_class


class Cluster:
    """What an assignor asks of aiokafka's metadata."""

    def __init__(self, **partitions: int) -> None:
        self._partitions = {name.replace("__", "."): count for name, count in partitions.items()}

    def topics(self) -> set[str]:
        return set(self._partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        count = self._partitions.get(topic)
        return None if count is None else set(range(count))


class Group:
    """Members with an assignor each; the first leads."""

    def __init__(self, cluster: Cluster, topics: list[str]) -> None:
        self._cluster = cluster
        self._topics = topics
        self._members: dict[str, Any] = {}

    def join(self, name: str) -> None:
        self._members[name] = assignor_class()

    def leave(self, name: str) -> None:
        del self._members[name]

    def rebalance(self) -> dict[str, set[tuple[str, int]]]:
        leader = next(iter(self._members.values()))
        decided = leader.assign(
            self._cluster, {name: assignor.metadata(self._topics) for name, assignor in self._members.items()}
        )
        held = {}
        for name, assignment in decided.items():
            over_the_wire = ConsumerProtocolMemberAssignment.decode(assignment.encode())
            self._members[name].on_assignment(over_the_wire)
            held[name] = {(tp.topic, tp.partition) for tp in over_the_wire.partitions()}
        return held


def requests(held: set[tuple[str, int]]) -> set[tuple[str, int]]:
    return {place for place in held if not place[0].endswith(".retry")}


def test_a_node_that_joins_gets_requests_and_not_just_retries() -> None:
    group = Group(Cluster(m=2, m__retry=2), ["m", "m.retry"])
    group.join("a")
    assert group.rebalance() == {"a": {("m", 0), ("m", 1), ("m.retry", 0), ("m.retry", 1)}}
    group.join("b")
    held = group.rebalance()
    assert [len(requests(share)) for share in held.values()] == [1, 1]
    for share in held.values():
        [(_, number)] = requests(share)
        assert share == {("m", number), ("m.retry", number)}


def test_a_departure_moves_only_what_the_departed_held() -> None:
    group = Group(Cluster(m=6, m__retry=6), ["m", "m.retry"])
    for name in "abc":
        group.join(name)
    before = group.rebalance()
    assert [len(requests(share)) for share in before.values()] == [2, 2, 2]
    group.leave("b")
    after = group.rebalance()
    assert after["a"] >= before["a"]
    assert after["c"] >= before["c"]
    assert after["a"] | after["c"] == before["a"] | before["b"] | before["c"]
    assert not after["a"] & after["c"]


def test_every_retry_partition_has_one_owner_also_when_there_are_more_than_requests() -> None:
    group = Group(Cluster(m=2, m__retry=5), ["m", "m.retry"])
    group.join("a")
    group.join("b")
    shares = list(group.rebalance().values())
    assert shares[0] | shares[1] == {("m", 0), ("m", 1)} | {("m.retry", at) for at in range(5)}
    assert not shares[0] & shares[1]


def test_a_request_topic_whose_own_name_ends_in_retry_is_shared_as_any_other() -> None:
    group = Group(Cluster(jobs__retry=2, jobs__retry__retry=2), ["jobs.retry", "jobs.retry.retry"])
    group.join("a")
    group.join("b")
    for share in group.rebalance().values():
        [number] = {at for topic, at in share if topic == "jobs.retry"}
        assert share == {("jobs.retry", number), ("jobs.retry.retry", number)}


def test_a_member_with_fewer_models_gets_only_theirs() -> None:
    cluster = Cluster(m=2, m__retry=2, n=2, n__retry=2)
    both, one = assignor_class(), assignor_class()
    decided = both.assign(
        cluster, {"both": both.metadata(["m", "m.retry", "n", "n.retry"]), "one": one.metadata(["m", "m.retry"])}
    )
    held = {name: {topic for topic, _ in assignment.assignment} for name, assignment in decided.items()}
    assert held["one"] == {"m", "m.retry"}
    assert held["both"] >= {"n", "n.retry"}
