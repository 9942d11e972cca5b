# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What comes in from ROS: joint messages."""

from dataclasses import replace
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from metactl_ros.control.modes import Mode
from metactl_ros.motion.reference import Hold, motion_limits
from metactl_ros.runtime.controller import LiveController, Requests
from metactl_ros.runtime.joint_states import (
    effort_doubt,
    find_joints,
    MessageError,
    nanoseconds,
    read_effort,
    read_joint_state,
    set_stamp,
    StateGate,
)
from metactl_ros.runtime.reference_source import MotionSource
from metactl_ros.settings import load_settings
from metactl_ros.signals import ArmState

SETTINGS = load_settings()
PERIOD_NS = 10_000_000
JOINTS = ('shoulder', 'elbow')
FIELDS = ('position', 'velocity', 'effort')
BAD_NUMBERS = (np.nan, np.inf, -np.inf, 1e308, -1e308, 1.1e6)

numbers = st.floats(-1e6, 1e6)


def message(names=JOINTS, position=(0.5, -0.25), velocity=(1.5, 2.5), effort=(), stamp=(7, 8)):
    time = SimpleNamespace(sec=stamp[0], nanosec=stamp[1])
    return SimpleNamespace(
        header=SimpleNamespace(stamp=time),
        name=list(names),
        position=list(position),
        velocity=list(velocity),
        effort=list(effort),
    )


def with_value(field, place, value):
    found = message(effort=(3.0, 4.0))
    getattr(found, field)[place] = value
    return found


def bits(sample):
    return sample.stamp_ns, *(x.tobytes() for x in sample[1:])


@given(
    values=st.lists(st.tuples(numbers, numbers, numbers), min_size=2, max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_permuted_and_extra_joints_give_the_same_bits(values, order):
    names = [*JOINTS, 'wrist', 'grip', 'wheel', 'Ellenbogen ü'][: len(values)]
    plain = message(JOINTS, *zip(*values[:2], strict=True))
    rows = list(zip(names, values, strict=True))
    order.shuffle(rows)
    mixed = message([name for name, _ in rows], *zip(*(row for _, row in rows), strict=True))
    assert bits(read_joint_state(mixed, JOINTS)) == bits(read_joint_state(plain, JOINTS))
    assert read_effort(mixed, JOINTS)[1].tobytes() == np.array(plain.effort).tobytes()


def test_a_sample_says_what_the_message_says():
    sample = read_joint_state(message(effort=(3.0, 4.0)), JOINTS)
    assert sample.stamp_ns == 7_000_000_008
    assert sample.q_rad.tolist() == [0.5, -0.25]
    assert sample.qd_radps.tolist() == [1.5, 2.5]
    assert sample.effort_nm.tolist() == [3.0, 4.0]


def test_a_command_says_what_the_message_says():
    stamp_ns, effort = read_effort(message(effort=(3.0, 4.0), stamp=(0, 0)), JOINTS)
    assert (stamp_ns, effort.tolist()) == (0, [3.0, 4.0])


@pytest.mark.parametrize('effort', [(), (1.0,), (1.0, 2.0, 3.0), (1.0, np.nan), (np.inf, 1.0)])
def test_efforts_that_are_not_all_there_are_none(effort):
    assert read_joint_state(message(effort=effort), JOINTS).effort_nm is None


@pytest.mark.parametrize(
    ('effort', 'joint'),
    [
        ((5000.0, 10.0), 'shoulder'),
        ((10.0, -73.0), 'elbow'),
        ((179.0, -71.0), None),
        ((), None),
    ],
)
def test_a_measured_effort_far_beyond_its_limit_is_doubted_by_name(effort, joint):
    sample = read_joint_state(message(effort=effort), JOINTS)
    found = effort_doubt(sample, (150.0, 60.0), JOINTS)
    if joint is None:
        assert found == ''
    else:
        assert found.startswith(f"joint '{joint}': measured effort rejected, with those of the")
        assert 'at most 1.2 times its limit of' in found
        assert 'publish N m' in found


def test_efforts_beside_positions_of_more_joints_are_matched_by_name():
    found = message(['grip', *JOINTS], (9, 1, 2), (9, 3, 4), (9, 5, 6))
    assert read_joint_state(found, JOINTS).effort_nm.tolist() == [5.0, 6.0]


@pytest.mark.parametrize(
    'names', [[], ['shoulder'], ['shoulder', 'elbow '], ['shoulder', 'ELBOW']]
)
def test_a_missing_joint_is_named_and_so_is_what_was_found(names):
    missing = 'elbow' if names else 'shoulder'
    with pytest.raises(MessageError, match=f"joint '{missing}': not in the message") as refusal:
        find_joints(names, JOINTS)
    assert str(names) in str(refusal.value)


@pytest.mark.parametrize(
    ('names', 'twice'),
    [
        (['shoulder', 'elbow', 'elbow'], 'elbow'),
        (['shoulder', 'elbow', 'shoulder'], 'shoulder'),
        (['grip', 'shoulder', 'elbow', 'grip'], 'grip'),
    ],
)
def test_a_joint_named_twice_is_named_in_the_refusal(names, twice):
    filled = message(names, *[[0.0] * len(names)] * 3)
    for read in (read_joint_state, read_effort):
        with pytest.raises(MessageError, match=f"joint '{twice}': named twice"):
            read(filled, JOINTS)


@pytest.mark.parametrize('field', FIELDS)
@pytest.mark.parametrize(('size', 'named'), [(0, 'shoulder'), (1, 'elbow'), (3, 'elbow')])
def test_a_field_of_the_wrong_length_names_the_first_joint_without_a_number(field, size, named):
    wrong = message(effort=(3.0, 4.0))
    setattr(wrong, field, [0.0] * size)
    expected = f"joint '{named}': expected one {field} per name, found {size} for 2 names"
    with pytest.raises(MessageError, match=expected):
        (read_effort if field == 'effort' else read_joint_state)(wrong, JOINTS)


@pytest.mark.parametrize('field', FIELDS)
@pytest.mark.parametrize('place', [0, 1])
@pytest.mark.parametrize('value', BAD_NUMBERS)
def test_a_number_that_is_not_finite_or_absurd_names_its_joint(field, place, value):
    read = read_effort if field == 'effort' else read_joint_state
    expected = f"joint '{JOINTS[place]}': expected a finite {field}"
    with pytest.raises(MessageError, match=expected):
        read(with_value(field, place, value), JOINTS)


@pytest.mark.parametrize('field', ['position', 'velocity'])
@pytest.mark.parametrize('value', [5e-324, -0.0, 1e6, -1e6])
def test_a_small_or_large_number_is_still_a_number(field, value):
    sample = read_joint_state(with_value(field, 0, value), JOINTS)
    assert [*sample.q_rad, *sample.qd_radps][FIELDS.index(field) * 2] == value


def test_a_bad_number_of_another_joint_disturbs_nobody():
    found = message([*JOINTS, 'grip'], (1, 2, np.nan), (3, 4, np.inf), (5, 6, np.nan))
    assert read_joint_state(found, JOINTS).effort_nm.tolist() == [5.0, 6.0]
    assert read_effort(found, JOINTS)[1].tolist() == [5.0, 6.0]


@pytest.mark.parametrize('stamp', [(0, 0), (-1, 0), (-1, 999_999_999)])
def test_a_joint_state_without_a_stamp_is_refused(stamp):
    with pytest.raises(MessageError, match='has no stamp; set'):
        read_joint_state(message(stamp=stamp), JOINTS)


def test_one_nanosecond_is_a_stamp():
    assert read_joint_state(message(stamp=(0, 1)), JOINTS).stamp_ns == 1


@given(stamp_ns=st.integers(-(2**31) * 10**9, 2**31 * 10**9 - 1))
def test_a_stamp_survives_being_written_and_read(stamp_ns):
    stamp = SimpleNamespace()
    set_stamp(stamp, stamp_ns)
    assert nanoseconds(stamp) == stamp_ns
    assert 0 <= stamp.nanosec < 10**9


def fuzzed_message(rng):
    """Return a message that is mostly right, with any number of things wrong."""
    pool = [*JOINTS, 'grip', '', 'ellbow', 'elbow\0', '肘']
    names = list(JOINTS) if rng.random() < 0.7 else rng.choice(pool, rng.integers(0, 6)).tolist()
    rng.shuffle(names)

    def numbers_for():
        size = len(names) if rng.random() < 0.9 else rng.integers(0, 7)
        values = rng.normal(size=size) * 10.0 ** rng.integers(-320, 7)
        if size and rng.random() < 0.2:
            values[rng.integers(size)] = rng.choice([*BAD_NUMBERS, -0.0, 5e-324])
        return values

    stamp = int(rng.choice([rng.integers(-(2**31), 2**31), 0, 5])), int(rng.integers(0, 2**32))
    return message(names, numbers_for(), numbers_for(), numbers_for(), stamp)


def test_50000_fuzzed_commands_are_refused_or_give_finite_numbers():
    rng, num_good = np.random.default_rng(50000), 0
    for _ in range(50_000):
        try:
            _, effort = read_effort(fuzzed_message(rng), JOINTS)
        except MessageError:
            continue
        num_good += 1
        assert effort.shape == (2,)
        assert np.isfinite(effort).all()
    assert num_good > 2_000


def test_50000_fuzzed_states_are_refused_by_name_and_drive_within_every_limit():
    """Through parser, gate and controller as in the node, ten messages for each tick."""
    rng, limits = np.random.default_rng(7), SETTINGS.arm.limits
    arm = replace(SETTINGS.arm, joint_names=JOINTS)
    gate = StateGate(arm, PERIOD_NS, state_timeout_ns=25_000_000)
    source = MotionSource(Hold(np.zeros(2)), motion_limits(arm))
    controller = LiveController(
        arm, SETTINGS.controller, None, source, Requests(payload_kg=0.5), 10**9
    )
    before = controller.begin(ArmState(0, np.zeros(2), np.zeros(2)), None)
    most = np.array(limits.effort_nm)
    step = np.array(limits.effort_rate_nmps) * PERIOD_NS / 1e9 + 1e-9
    modes, complaints, states = set(), set(), []
    for number in range(1, 50_001):
        now_ns, found = number * PERIOD_NS // 10, fuzzed_message(rng)
        if rng.random() < 0.9:
            set_stamp(found.header.stamp, now_ns)
        try:
            states.append(gate.admit(read_joint_state(found, JOINTS), now_ns))
        except MessageError as error:
            complaints.add(str(error).partition("'")[0])
        if number % 10:
            continue
        states = [state for state in states if state is not None]
        controller.requests.reset_fault = True  # or it would soon rest for good
        tick = controller.drive(states, now_ns, is_fresh=bool(states))
        effort, modes, states = tick.step.effort_nm, modes | {tick.mode}, []
        assert (np.abs(effort) <= most).all()  # NaN is not
        assert (np.abs(effort - before) <= step).all()
        before = effort
    no_stamp = 'joint state: has no stamp; set header.stamp to the time of measuring.'
    assert complaints == {'joint ', no_stamp}
    assert modes >= {Mode.NOMINAL, Mode.WARMUP, Mode.STOP, Mode.BLIND, Mode.FAULT}
    assert gate.counts['accepted'] > 2_000
