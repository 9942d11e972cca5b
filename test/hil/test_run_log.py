# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What is read of a run: when faults really came, and which processes were lost.

Of the two topics of commands: which node sent what, and whether both say the same.
"""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.made_runs import good_run

from metactl_ros.hil.run_log import (
    accepted_states,
    by_publisher,
    DecodedMessage,
    lost_processes,
    recording_gaps_ns,
    sent_commands,
)
from metactl_ros.settings import load_settings

SETTINGS = load_settings()

NAMES = ('joint1', 'joint2')
PERIOD_NS = 10_000_000
ZERO_NS = 1_800_000_000_000_000_000


def tick_ns(k):
    return ZERO_NS + k * PERIOD_NS


def stamped(k, number=None, effort=None, names=NAMES, stamp_ns=None):
    stamp_ns = tick_ns(k) if stamp_ns is None else stamp_ns
    stamp = SimpleNamespace(sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
    message = SimpleNamespace(
        header=SimpleNamespace(stamp=stamp),
        name=list(names),
        effort=np.array([k, -1.0] if effort is None else effort),
    )
    return DecodedMessage(tick_ns(k) + 1000, k + 1 if number is None else number, message)


def forwarded(k, number=None, effort=None, label='joint1,joint2'):
    message = SimpleNamespace(
        data=np.array([k, -1.0] if effort is None else effort),
        layout=SimpleNamespace(dim=[SimpleNamespace(label=label)]),
    )
    return DecodedMessage(tick_ns(k) + 2000, k + 1 if number is None else number, message)


def run(steps=20):
    """Return joint_commands, the other topic and the ticks of a run in which all is well."""
    ks = range(steps)
    return [stamped(k) for k in ks], [forwarded(k) for k in ks], [tick_ns(k) for k in ks]


def problems(first, second, ticks):
    return sent_commands(first, second, ticks, NAMES).problems


def test_a_good_run_has_all_its_commands_and_no_problem():
    found = sent_commands(*run(), NAMES)
    assert found.problems == ()
    assert found.restarts_ns == ()
    assert found.commands.stamp_ns.tolist() == [tick_ns(k) for k in range(20)]
    assert found.commands.received_ns.tolist() == [tick_ns(k) + 1000 for k in range(20)]
    assert found.commands.effort_nm.tolist() == [[k, -1.0] for k in range(20)]
    assert found.foreign_ns.size == 0


def replaced(rows, place, row):
    return [*rows[:place], row, *rows[place + 1 :]]


@pytest.mark.parametrize(
    ('spoil', 'says'),
    [
        (
            lambda a, b, t: (replaced(a, 5, stamped(5, effort=[5.0, 1.0])), b, t),
            '1 commands differ',
        ),
        (lambda a, b, t: (a, replaced(b, 5, forwarded(5, effort=[1e9, 0.0])), t), 'differ'),
        (lambda a, b, t: (a, replaced(b, 5, forwarded(5, effort=[5.0])), t), 'differ'),
        (lambda a, b, t: (a, replaced(b, 5, forwarded(5, effort=[np.nan, -1.0])), t), 'differ'),
        (lambda a, b, t: (a, replaced(b, 5, forwarded(5, label='')), t), 'do not name'),
        (lambda a, b, t: (a, [], t), 'commands is silent'),
        (lambda a, b, t: (a, b[:10], t), 'ends with number 20, the other with 10'),
        (lambda a, b, t: (replaced(a, 5, stamped(5, names=('joint2', 'joint1'))), b, t), 'name'),
        (
            lambda a, b, t: (replaced(a, 5, stamped(5, stamp_ns=7)), b, t),
            '1 ticks have no command',
        ),
        (
            lambda a, b, t: (replaced(a, 5, stamped(5, stamp_ns=tick_ns(4))), b, t),
            'more than one command',
        ),
    ],
)
def test_whatever_differs_is_a_problem(spoil, says):
    assert any(says in problem for problem in problems(*spoil(*run())))


@given(st.sets(st.integers(0, 18)), st.sets(st.integers(0, 18)))
def test_what_the_recorder_missed_is_no_problem(first_lost, second_lost):
    first, second, ticks = run()
    first = [row for k, row in enumerate(first) if k not in first_lost]
    second = [row for k, row in enumerate(second) if k not in second_lost]
    assert problems(first, second, ticks) == ()


def test_a_command_of_the_wrong_length_is_not_finite():
    first, second, ticks = run()
    found = sent_commands(replaced(first, 3, stamped(3, effort=[1.0])), second, ticks, NAMES)
    assert np.isnan(found.commands.effort_nm[3]).all()
    assert found.problems


@pytest.mark.parametrize('begin', [3, 10])
def test_commands_of_another_node_are_told_apart_by_their_numbers(begin):
    first, second, ticks = run()
    for n, k in enumerate(range(begin, 20), 1):
        first.append(stamped(k, n, [150.0, 60.0], stamp_ns=tick_ns(k) + 5_000_000))
        second.append(forwarded(k, n, [150.0, 60.0]))
    for rows in (first, second):
        rows.sort(key=lambda row: (row.published_ns, -row.sequence))
    found = sent_commands(first, second, ticks, NAMES)
    assert found.commands.effort_nm.tolist() == [[k, -1.0] for k in range(20)]
    assert found.problems == ()
    assert len(found.foreign_ns) == 2 * (20 - begin)
    assert found.foreign_ns[0] == tick_ns(begin) + 1000


def test_another_node_on_the_other_topic_alone_is_foreign_too():
    first, second, ticks = run()
    second = [*second[:10], forwarded(9, 1, [1.0, 1.0]), *second[10:]]
    found = sent_commands(first, second, ticks, NAMES)
    assert found.problems == ()
    assert len(found.foreign_ns) == 1


def test_a_controller_that_was_started_again_goes_on_as_one_more():
    first = [*(stamped(k) for k in range(8)), *(stamped(k, k - 9) for k in range(10, 30))]
    second = [*(forwarded(k) for k in range(8)), *(forwarded(k, k - 9) for k in range(10, 30))]
    found = sent_commands(first, second, [tick_ns(k) for k in (*range(8), *range(10, 30))], NAMES)
    assert found.problems == ()
    assert found.restarts_ns == (tick_ns(10) + 1000,)
    assert len(found.commands.stamp_ns) == 28


def test_commands_without_a_single_tick_are_of_no_controller():
    first, second, _ = run()
    assert sent_commands(first, second, [], NAMES) is None
    assert sent_commands([], [], [1], NAMES) is None


@given(st.lists(st.integers(0, 2), max_size=60))
def test_publishers_who_began_one_after_the_other_are_told_apart(who):
    counts = [0, 1000, 2000]
    entries = []
    for when, one in enumerate([2, 1, 0, *who]):  # who began earlier is further on
        counts[one] += 1
        entries.append(DecodedMessage(when, counts[one], one))
    rows = by_publisher(entries)
    assert [{entry.message for entry in row} for row in rows] == [{2}, {1}, {0}]
    assert sum(map(len, rows)) == len(entries)


def test_the_recorder_missed_what_the_numbers_of_the_messages_lack():
    def numbered(*pairs):
        return [DecodedMessage(when, number, SimpleNamespace()) for when, number in pairs]

    assert recording_gaps_ns(numbered((10, 1), (20, 2), (30, 3))) == []
    assert recording_gaps_ns(numbered((10, 5), (20, 6))) == [(0, 10)]
    assert recording_gaps_ns(numbered((10, 1), (40, 4))) == [(10, 40)]
    assert recording_gaps_ns(numbered((10, 1), (20, 2), (90, 1))) == []
    assert recording_gaps_ns(numbered((10, 1), (20, 2), (90, 7))) == [(20, 90)]
    assert recording_gaps_ns(numbered((10, 7), (20, 1), (30, 8), (40, 2))) == [
        (0, 10)
    ]  # two publishers


def test_states_that_led_to_a_new_timeline_could_be_believed_by_a_gate_that_began_elsewhere():
    def state(number, stamp_ns):
        stamp = SimpleNamespace(sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
        message = SimpleNamespace(
            header=SimpleNamespace(stamp=stamp),
            name=['joint1', 'joint2'],
            position=np.zeros(2),
            velocity=np.zeros(2),
            effort=np.zeros(2),
        )
        return DecodedMessage(number * 10_000_000, number, message)

    states = [state(k, 10**9 + k * 10_000_000) for k in range(1, 300)]
    states += [state(k, 9 * 10**9 + k * 10_000_000) for k in range(300, 330)]  # its clock was set
    topics = {'joint_states': states, 'controller/shield': [], 'controller/feedback': []}
    assert accepted_states(topics, (), SETTINGS).received_ns.tolist() == [
        entry.published_ns for entry in states
    ]
    stuck = [state(k, 4 * 10**9) for k in range(300, 500)]  # for two seconds, then it goes on
    after = [state(k, 9 * 10**9 + k * 10_000_000) for k in range(500, 530)]
    topics['joint_states'] = [*states[:299], *stuck, *after]
    assert accepted_states(topics, (), SETTINGS).received_ns[-30:].tolist() == [
        e.published_ns for e in after
    ]
    single = [*states[:299], state(300, 9 * 10**9), *[state(k, k) for k in range(301, 330)]]
    topics['joint_states'] = single
    assert len(accepted_states(topics, (), SETTINGS).received_ns) == 299


def test_times_of_a_fault_are_those_at_which_it_really_came():
    log = good_run()
    assert (log.when(2.0), log.when(2.3), log.when(2.1)) == (2.02, 2.32, 2.1)


def test_a_process_is_lost_if_it_ended_before_its_time_or_with_an_error():
    codes = {'controller_node': -6, 'plant_node': 1, 'recorder': 0}
    run = {'gone': ['plant_node'], 'exit_codes': codes}
    assert lost_processes(run) == ('plant_node', 'controller_node (code -6)')
