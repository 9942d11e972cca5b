# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The metadata.yaml of a bag, version 9, as ROS 2 Jazzy writes it."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import yaml

from metactl_ros.bag.message_definitions import MessageDefinition
from metactl_ros.signals import NANOSECONDS_PER_SECOND


class BagTopic(NamedTuple):
    """A topic as a bag describes it."""

    name: str
    definition: MessageDefinition
    offered_qos: tuple[Mapping[str, Any], ...] = ()
    """The profiles its publishers offer, in the words of rosbag2."""


def bag_information(
    file_name: str,
    topics: Iterable[BagTopic],
    counts: Mapping[str, int],
    span_ns: tuple[int, int],
    stopped: str | None = None,
) -> dict[str, Any]:
    """Return what rosbag2 keeps of a bag.

    Args:
        file_name: The MCAP file, in the folder of the bag.
        topics: The topics that have messages.
        counts: Messages per name of a topic.
        span_ns: The first and the last log time.
        stopped: Why the recording ended before its time, kept under custom_data.
    """
    start_ns, end_ns = span_ns
    extent = {
        'starting_time': {'nanoseconds_since_epoch': start_ns},
        'duration': {'nanoseconds': end_ns - start_ns},
        'message_count': sum(counts.values()),
    }
    rows = [
        {
            'topic_metadata': {
                'name': topic.name,
                'type': topic.definition.type_name,
                'serialization_format': 'cdr',
                'offered_qos_profiles': [dict(profile) for profile in topic.offered_qos],
                'type_description_hash': topic.definition.type_hash,
            },
            'message_count': counts[topic.name],
        }
        for topic in topics
    ]
    return {
        'version': 9,
        'storage_identifier': 'mcap',
        **extent,
        'topics_with_message_count': rows,
        'compression_format': '',
        'compression_mode': '',
        'relative_file_paths': [file_name],
        'files': [{'path': file_name, **extent}],
        'custom_data': None if stopped is None else {'stopped': stopped},
        'ros_distro': 'jazzy',
    }


def qos_in_words(profile: Any) -> dict[str, Any]:
    """Return a QoSProfile of rclpy as metadata.yaml spells it."""
    words: dict[str, Any] = {'depth': profile.depth}
    for policy in ('history', 'reliability', 'durability', 'liveliness'):
        words[policy] = getattr(profile, policy).short_key
    for duration in ('deadline', 'lifespan', 'liveliness_lease_duration'):
        seconds, rest = divmod(getattr(profile, duration).nanoseconds, NANOSECONDS_PER_SECOND)
        words[duration] = {'sec': seconds, 'nsec': rest}
    return words | {'avoid_ros_namespace_conventions': profile.avoid_ros_namespace_conventions}


def to_yaml(value: object) -> str:
    """Return YAML in the order given; without anchors, which rosbag2 does not write either."""
    return yaml.dump(value, Dumper=_NoAnchors, sort_keys=False)


class _NoAnchors(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Return true: what is there twice is written twice."""
        return True
