# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Records topics to a bag, in a process of its own, so that no disk can delay the controller.

    python -m metactl_ros.ros.recorder --ros-args -p out:=FOLDER

Messages are kept as the bytes that arrived, with the time at which the middleware received them,
and fetched from it every few milliseconds: being called for each of them, rclpy's way, costs far
more, and a quick simulation would leave the recorder behind. SIGINT and SIGTERM end the bag; a
kill costs less than a second of it. Exit codes: 0 recorded, 1 the disk failed, 2 refused to start,
3 nothing came; an empty bag is not left behind.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
import json
import math
from operator import itemgetter
import os
from pathlib import Path
import signal
import sys
import time
from typing import Any

import rclpy
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.exceptions import ParameterException
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSDurabilityPolicy, QoSPolicyKind, QoSProfile, QoSReliabilityPolicy
from rclpy.signals import SignalHandlerOptions

from metactl_ros.bag.topics import LATCHED, load_definition, parse_topics, SHARED_TOPICS, TOPICS
from metactl_ros.bag.writer import (
    BagTopic,
    BagWriteError,
    BagWriter,
    LogClock,
    qos_in_words,
    ReceivedMessage,
    Recording,
)
from metactl_ros.errors import ConfigError, MetactlError
from metactl_ros.ros.spin import answer_always, subscribe, take

DEPTH = 1000
"""Messages the middleware keeps for us: ten seconds at 100 Hz."""
POLL_S = 0.005
"""How often messages are fetched, and signals seen."""
EVENTS_S = 0.05
"""How often everything else is looked after, and how long it must be quiet at the end."""
DRAIN_S = 1.0
"""How long at most messages are still fetched after a signal."""
SHOW_S = 0.5
"""How often a terminal shows how far the recording is."""


def main(args: list[str] | None = None, duration_s: float = math.inf) -> int:
    """Record until SIGINT, SIGTERM or the end of the duration; return the exit code."""
    # Not rclpy's handlers: with those a second signal would stop us while we end the bag.
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: signals.append(number))
    try:
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    except RuntimeError as error:  # what rclpy raises for arguments it cannot read
        sys.stderr.write(f'error: {error}\n')
        return 2
    node = rclpy.create_node('recorder')
    answer_always(node)
    try:
        return record(node, signals, duration_s)
    except (MetactlError, ParameterException) as error:
        node.get_logger().error(str(error))
        return 1 if isinstance(error, BagWriteError) else 2
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


def run_record(out: Path, topics: Sequence[str] | None, namespace: str, duration_s: float) -> int:
    """Record from the command line; a duration of zero lasts until Ctrl-C; return the exit code.

    Args:
        out: The folder of the bag.
        topics: NAME or NAME=TYPE; None for all of this package.
        namespace: Of all topics that have no slash in front.
        duration_s: Of the recording.
    """
    arguments = ['--ros-args', '-p', f'out:={json.dumps(str(out))}']
    if namespace:
        arguments += ['-r', f'__ns:=/{namespace.strip("/")}']
    if topics is not None:
        arguments += ['-p', f'topics:={json.dumps(list(topics))}']
    return main(arguments, duration_s or math.inf)


def record(node: Any, signals: list[int], duration_s: float = math.inf) -> int:
    """Record what the node's parameters ask for until there is a signal; return the exit code."""
    folder = Path(node.declare_parameter('out', '').value)
    if folder == Path():
        raise ConfigError('out: expected a folder to record to; add -p out:=FOLDER.')
    entries = node.declare_parameter('topics', list(TOPICS)).value or ()  # [] arrives as None
    topics = [
        BagTopic(resolve(node, name), load_definition(type_name))
        for name, type_name in parse_topics(entries)
    ]
    recording = Recording(BagWriter(folder))
    clock = LogClock()
    taps = [Tap(node, topic) for topic in topics]

    def fetch() -> int:
        """Put what came since the last time into the recording, in order; return how many."""
        fetched = [
            (info['received_timestamp'], tap, data, info)
            for tap in taps
            for data, info in tap.take()
        ]
        for received_ns, tap, data, info in sorted(fetched, key=itemgetter(0)):
            recording.put(tap.message(data, info, clock.log_time_ns(received_ns)))
        return len(fetched)

    sys.stderr.write(f'recording to {folder}\n')
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    shown_s = looked_s = 0.0
    begin_s = time.monotonic()
    while not signals and recording.failure is None and time.monotonic() < begin_s + duration_s:
        fetch()
        passed_s = time.monotonic() - begin_s
        if passed_s > looked_s + EVENTS_S:
            looked_s = passed_s
            executor.spin_once(timeout_sec=0.0)
            for tap in taps:
                tap.follow_offers()
        if passed_s > shown_s + SHOW_S and sys.stderr.isatty():
            shown_s = passed_s
            count = sum(recording.counts.values())
            sys.stderr.write(f'\r{passed_s:.0f} s, {count} messages on the disk\x1b[K')
        time.sleep(POLL_S)
    if shown_s:
        sys.stderr.write('\n')
    end_s, quiet_s = time.monotonic() + DRAIN_S, time.monotonic() + EVENTS_S
    while recording.failure is None and time.monotonic() < min(end_s, quiet_s):
        if fetch():
            quiet_s = time.monotonic() + EVENTS_S
        time.sleep(POLL_S)
    recording.close()
    return report_end(node, folder, [topic.name for topic in topics], recording)


def report_end(node: Any, folder: Path, names: Sequence[str], recording: Recording) -> int:
    """Say what was recorded, or why nothing was; return the exit code."""
    counts = recording.counts
    summary = ', '.join(f'{name} {counts[name]}' for name in names)
    sys.stderr.write(f'recorded to {folder}: {summary}\n')
    if recording.failure is not None:
        node.get_logger().error(str(recording.failure))
        return 1
    of_robot = [name for name in names if name not in SHARED_TOPICS] or names
    if any(counts[name] for name in of_robot):
        return 0
    left = f'the bag holds {sum(counts.values())} messages of others'
    if not any(counts.values()):
        with suppress(OSError):  # another program put something there
            for path in (folder / f'{folder.name}_0.mcap', folder / 'metadata.yaml'):
                path.unlink(missing_ok=True)
            folder.rmdir()
        left = 'the bag is empty' if folder.exists() else 'no bag is left'
    node.get_logger().error(
        f'{folder}: nothing came on {", ".join(of_robot)}; {left}. Start the robot first, and see '
        f'that namespace and ROS_DOMAIN_ID (here {os.environ.get("ROS_DOMAIN_ID", "0")}) are its '
        'own.'
    )
    return 3


def resolve(node: Any, name: str) -> str:
    """Return the full name of a topic, with the node's namespace and remappings."""
    try:
        return str(node.resolve_topic_name(name))
    except RuntimeError as error:
        raise ConfigError(f'topics: {name!r} cannot be a topic: {error}.') from error


class Tap:
    """A subscription from which the messages of a topic are fetched, as bytes.

    It asks for reliable delivery, so that nothing is lost. A publisher that offers less would not
    be received at all: where there is one, less is asked for from then on.
    """

    def __init__(self, node: Any, topic: BagTopic) -> None:
        self._node = node
        self._topic = topic
        self._refused: QoSPolicyKind | None = None
        self._qos = QoSProfile(depth=DEPTH, reliability=QoSReliabilityPolicy.RELIABLE)
        if topic.name.endswith(LATCHED):
            self._qos.durability = QoSDurabilityPolicy.TRANSIENT_LOCAL
        self._subscription = self._subscribe()

    def follow_offers(self) -> None:
        """Ask for less if a publisher has appeared that does not offer what was asked for."""
        refused, self._refused = self._refused, None
        if refused == QoSPolicyKind.RELIABILITY:
            self._qos.reliability = QoSReliabilityPolicy.BEST_EFFORT
            warning = 'is published as best effort: messages may be lost'
        elif refused == QoSPolicyKind.DURABILITY:
            self._qos.durability = QoSDurabilityPolicy.VOLATILE
            warning = 'is not kept by its publisher: earlier messages are not recorded'
        else:
            return
        self._node.get_logger().warning(f'{self._topic.name} {warning}.')
        self._node.destroy_subscription(self._subscription)
        self._subscription = self._subscribe()

    def _subscribe(self) -> Any:
        package, _, name = self._topic.definition.type_name.split('/')
        return subscribe(
            self._node,
            getattr(import_module(f'{package}.msg'), name),
            self._topic.name,
            self._qos,
            SubscriptionEventCallbacks(incompatible_qos=self._on_refusal),
            raw=True,
        )

    def _on_refusal(self, event: Any) -> None:
        self._refused = QoSPolicyKind(event.last_policy_kind)

    def take(self) -> Iterator[tuple[bytes, dict[str, int]]]:
        """Give the messages that wait, oldest first, as bytes, and what is known of each."""
        for _ in range(DEPTH):  # not for ever: other topics have messages, too
            taken = take(self._subscription)
            if taken is None:
                return
            yield taken

    def message(self, data: bytes, info: dict[str, int], log_time_ns: int) -> ReceivedMessage:
        """Return a message as it goes into the bag."""
        if not self._topic.offered_qos:
            publishers = self._node.get_publishers_info_by_topic(self._topic.name)
            offered = tuple(qos_in_words(publisher.qos_profile) for publisher in publishers)
            self._topic = self._topic._replace(offered_qos=offered)
        return ReceivedMessage(
            self._topic,
            data,
            log_time_ns,
            max(info['source_timestamp'], 0),  # what a publisher sends may be anything
            info['publication_sequence_number'] % 2**32,
        )


if __name__ == '__main__':
    sys.exit(main())
