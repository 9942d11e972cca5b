# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Faults of the simulated robot, without ROS: each does what its line in KINDS says."""

from dataclasses import replace
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.episodes import start
from support.three_joints import FRICTION as OF_THREE

from metactl_ros.errors import ConfigError
from metactl_ros.processes import parameters_of, Setup
from metactl_ros.ros.simulated_robot import FreeRunningRobot, LockstepRobot
from metactl_ros.settings import faults_file, load_faults, make_plant
from metactl_ros.signals import ArmState
from metactl_ros.sim.fault_line import FaultLine, StateMessage
from metactl_ros.sim.faults import (
    Fault,
    FaultSchedule,
    is_plant_fault,
    KINDS,
    no_perturbation,
    parse_faults,
    perturbation_of,
    perturbed_friction,
)

MS = 1_000_000
PERIOD_NS = 10 * MS
NAMES = ('joint1', 'joint2')
OF_THE_PLANT = {'torque_loss', 'friction_step', 'payload_drop', 'tau_z_drift', 'brake', 'jam'}

kinds = st.sampled_from(list(KINDS))
seeds = st.integers(0, 2**32 - 1)


def on(kind, amount=None, joint=None):
    return Fault(kind=kind, at_s=0.0, amount=amount, joint=joint)


def message(k):
    """The k-th state of a run; its numbers tell k."""
    state = ArmState(k * PERIOD_NS, np.array([0.1 * k, 1.0]), np.array([0.5, -0.01 * k]))
    return StateMessage(10**9 + k * PERIOD_NS, NAMES, state, np.array([1.0, 2.0]))


def carried(faults_at, steps=40, seed=0):
    """Return what comes out with each of `steps` states, under the faults of each step."""
    line = FaultLine(PERIOD_NS, seed)
    return [line.apply(message(k), faults_at(k)) for k in range(steps)]


def numbers(out):
    """Return which states came, in their order."""
    return [round((each.stamp_ns - 10**9) / PERIOD_NS) for batch in out for each in batch]


def during(first, last, *faults):
    return lambda k: faults if first <= k < last else ()


def is_same(a, b):
    pairs = (a.state.q_rad, b.state.q_rad), (a.state.qd_radps, b.state.qd_radps)
    return a[:2] == b[:2] and all(np.array_equal(x, y) for x, y in pairs)


def test_without_faults_each_state_goes_through_as_it_is():
    line = FaultLine(PERIOD_NS, 0)
    for k in range(5):
        given_in = message(k)
        (came,) = line.apply(given_in, ())
        assert came is given_in


@given(kinds, seeds, st.integers(0, 20), st.integers(1, 20))
def test_a_fault_that_is_over_leaves_no_trace_and_alters_no_number_it_was_given(
    kind, seed, begin, length
):
    line, kept = FaultLine(PERIOD_NS, seed), []
    for k in range(60):
        before, now = message(k), message(k)
        out = line.apply(now, during(begin, begin + length, on(kind))(k))
        assert is_same(now, before)
        kept.append(out)
    for k in [*range(begin), *range(begin + length + 1, 60)]:
        assert len(kept[k]) == 1
        assert is_same(kept[k][0], message(k))


@given(st.lists(kinds, min_size=1, max_size=4, unique=True), seeds)
def test_the_same_seed_gives_the_same_states(chosen, seed):
    faults = tuple(on(kind) for kind in chosen)
    first, again = (carried(lambda _: faults, seed=seed) for _ in range(2))
    assert repr(first) == repr(again)


@pytest.mark.parametrize('share', [0.0, 0.2, 0.9, 1.0])
def test_drop_loses_its_share(share):
    steps = 4000
    came = numbers(carried(lambda _: (on('drop', share),), steps))
    assert came == sorted(set(came))
    # Five standard deviations of a binomial share.
    assert abs(1.0 - len(came) / steps - share) <= 5.0 * (share * (1 - share) / steps) ** 0.5


def test_silence_says_nothing_and_what_was_held_back_is_lost():
    def faults(k):
        return (on('delay', 0.05),) if k < 10 else (on('silence'),) if k < 20 else ()

    assert numbers(carried(faults, 25)) == [0, 1, 2, 3, 4, 20, 21, 22, 23, 24]


def test_delay_is_whole_periods_late_and_catches_up_at_its_end():
    out = carried(during(5, 15, on('delay', 0.03)), 20)
    assert [len(batch) for batch in out] == [1] * 5 + [0] * 3 + [1] * 7 + [4] + [1] * 4
    assert numbers(out) == list(range(20))
    assert out[10][0].stamp_ns == message(7).stamp_ns


def test_burst_holds_states_back_then_sends_all_at_once():
    out = carried(lambda _: (on('burst', 0.1),), 31)
    assert [k for k, batch in enumerate(out) if batch] == [10, 20, 30]
    assert [len(batch) for batch in out if batch] == [10, 10, 10]
    assert numbers(out) == list(range(30))


def test_a_burst_as_long_as_it_lasts_comes_at_its_end():
    out = carried(during(5, 10, on('burst', 0.05)), 12)
    assert [len(batch) for batch in out] == [1] * 5 + [0] * 5 + [6, 1]


@given(seeds, st.floats(0.0, 0.1))
def test_jitter_keeps_the_order_loses_nothing_and_is_never_later_than_its_amount(seed, amount):
    out = carried(lambda _: (on('jitter', amount),), 80, seed)
    came = numbers(out)
    assert came == list(range(len(came)))
    late = [k - n for k, batch in enumerate(out) for n in numbers([batch])]
    assert max(late) <= round(amount / 0.01)


def test_jitter_really_varies():
    out = carried(lambda _: (on('jitter', 0.03),), 80)
    assert {len(batch) for batch in out} >= {0, 1, 2}


def test_reorder_swaps_neighbours():
    assert numbers(carried(lambda _: (on('reorder'),), 6)) == [1, 0, 3, 2, 5, 4]
    assert numbers(carried(during(0, 3, on('reorder')), 5)) == [1, 0, 2, 3, 4]


def test_freeze_repeats_the_numbers_and_stamps_go_on():
    out = carried(during(3, 8, on('freeze', joint=0)), 10)
    assert numbers(out) == list(range(10))
    assert [batch[0].state.q_rad[0] for batch in out[3:9]] == pytest.approx([0.3] * 5 + [0.8])
    assert [batch[0].state.qd_radps[1] for batch in out] == pytest.approx(
        [-0.01 * k for k in range(10)]
    )


@pytest.mark.parametrize('between', [(), (on('drop', 0.0),)])
def test_a_fault_that_comes_again_begins_anew(between):
    faults = {**dict.fromkeys((3, 4, 7, 8), (on('freeze'),)), 5: between, 6: between}
    out = carried(lambda k: faults.get(k, ()), 10)
    shown = [batch[0].state.q_rad[0] for batch in out]
    assert shown == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.3, 0.5, 0.6, 0.7, 0.7, 0.9])


@pytest.mark.parametrize('joint', [None, 0, 1])
def test_what_a_sensor_does_wrong_strikes_its_joint_alone(joint):
    struck = np.array([joint in (None, 0), joint in (None, 1)])
    given_in = message(7).state
    for kind, q, qd in (
        ('nan', np.nan * given_in.q_rad, np.nan * given_in.qd_radps),
        ('bias', given_in.q_rad + 0.2, given_in.qd_radps),
        ('sign_flip', given_in.q_rad, -given_in.qd_radps),
    ):
        fault = on(kind, 0.2 if kind == 'bias' else None, joint)
        (came,) = FaultLine(PERIOD_NS, 0).apply(message(7), (fault,))
        np.testing.assert_array_equal(came.state.q_rad, np.where(struck, q, given_in.q_rad))
        np.testing.assert_array_equal(came.state.qd_radps, np.where(struck, qd, given_in.qd_radps))


@given(st.integers(1, 20), st.floats(-3.0, 3.0), st.floats(-5.0, 5.0))
def test_quantise_gives_whole_counts_near_the_truth(bits, q, qd):
    count = 2.0 * np.pi / 2**bits
    state = ArmState(0, np.array([q, q]), np.array([qd, qd]))
    (came,) = FaultLine(PERIOD_NS, 0).apply(
        StateMessage(1, NAMES, state, np.zeros(2)), (on('quantise', float(bits)),)
    )
    counts = came.state.q_rad / count
    assert np.allclose(counts, np.round(counts), atol=1e-6)
    assert (np.abs(came.state.q_rad - q) <= count / 2 + 1e-9).all()
    assert (np.abs(came.state.qd_radps - qd) <= count / 0.01 + 1e-6).all()


def test_rename_and_clock_jump_change_names_and_stamps_alone():
    faults = (on('rename', joint=1), on('clock_jump', -2.5))
    (came,) = FaultLine(PERIOD_NS, 0).apply(message(4), faults)
    assert came.names == ('joint1', 'joint2_renamed')
    assert came.stamp_ns == message(4).stamp_ns - 2_500 * MS
    assert is_same(came._replace(names=NAMES, stamp_ns=message(4).stamp_ns), message(4))


def test_the_perturbation_is_what_the_faults_of_the_plant_add_up_to():
    assert perturbation_of(
        [on(kind) for kind in ('drop', 'nan', 'bias')], 5, 2
    ) == no_perturbation(2)
    faults = [
        on('torque_loss', 0.5),
        on('torque_loss', 0.5, joint=1),
        on('friction_step', 3.0),
        on('payload_drop', 0.2),
        Fault(kind='tau_z_drift', at_s=2.0, amount=0.5),
    ]
    assert perturbation_of(faults, 4_000 * MS, 2) == no_perturbation(2)._replace(
        effort_share=(0.5, 0.25), friction_factor=3.0, payload_lost_kg=0.2, tau_z_shift_s=1.0
    )


def test_the_burden_has_as_many_joints_as_the_arm():
    found = perturbation_of([on('torque_loss', 0.5, joint=2), on('jam', joint=1)], 0, 3)
    assert found == no_perturbation(3)._replace(
        effort_share=(1.0, 1.0, 0.5), is_jammed=(False, True, False)
    )
    with pytest.raises(ConfigError, match='Fault jam: expected a joint of 0 to 1, found 2'):
        perturbation_of([on('jam', joint=2)], 0, 2)
    assert parse_faults([{'kind': 'bias', 'at_s': 0.0, 'joint': 2}], 3) == [on('bias', joint=2)]


def test_only_the_levels_of_friction_per_joint_are_multiplied():
    friction = perturbed_friction(OF_THREE, 3.0)
    for name, factor in {
        'coulomb_nm': 3.0,
        'static_nm': 3.0,
        'smoothing_velocity_radps': 3.0,
        'viscous_nmsprad': 1.0,
    }.items():
        expected = [factor * value for value in getattr(OF_THREE, name)]
        assert getattr(friction, name) == pytest.approx(expected)
    assert perturbed_friction(OF_THREE, 0.5).smoothing_velocity_radps == (0.12, 0.15, 0.2)


def free_robot(settings, plant='rk4'):
    begin = start([0.4, -0.3], [0.8, -0.8], payload_kg=1.0)
    robot = FreeRunningRobot(plant, settings, begin, 10**9, 10.0)
    stamp = SimpleNamespace(sec=0, nanosec=0)
    command = SimpleNamespace(header=SimpleNamespace(stamp=stamp), name=NAMES, effort=[20.0, 5.0])
    assert robot.receive(command, 0)
    return robot


def driven(settings, faults, plant='rk4', steps=20):
    """Return the truths of a run whose faults begin with its second period."""
    robot, truths = free_robot(settings, plant), []
    for _ in range(steps):
        reading = robot.step(PERIOD_NS)
        robot.apply(perturbation_of(faults, reading.driven_ns, 2))
        truths.append([*reading.truth.q_rad, *reading.truth.qd_radps, *reading.memory_nm])
    robot.close()
    return np.array(truths)


@pytest.mark.parametrize('kind', sorted(KINDS.keys() - OF_THE_PLANT))
def test_no_fault_of_the_line_changes_the_truth(settings, kind):
    assert np.array_equal(driven(settings, [on(kind)]), driven(settings, []))


@pytest.mark.parametrize('plant', ['rk4', 'bullet'])
@pytest.mark.parametrize('kind', sorted(OF_THE_PLANT))
def test_faults_of_the_plant_change_the_truth_of_either_plant_and_can_end(settings, plant, kind):
    if plant == 'bullet':
        pytest.importorskip('pybullet', reason="needs pip install 'metactl_ros[sim]'")
    healthy, ill = (driven(settings, faults, plant) for faults in ([], [on(kind)]))
    assert np.array_equal(healthy[0], ill[0])
    assert np.abs(healthy - ill)[-1].max() > 1e-5
    robot = free_robot(settings, plant)
    robot.apply(perturbation_of([on(kind)], 10**9, 2))
    robot.apply(no_perturbation(2))
    cured = [robot.step(PERIOD_NS).truth.q_rad for _ in range(20)]
    robot.close()
    assert np.array_equal(cured, healthy[:, :2])


@pytest.mark.parametrize('plant', ['rk4', 'bullet'])
def test_a_plant_obeys_its_new_friction_as_if_made_with_it(settings, plant):
    if plant == 'bullet':
        pytest.importorskip('pybullet', reason="needs pip install 'metactl_ros[sim]'")
    friction = perturbed_friction(settings.plant.friction, 3.0)
    assert (friction.coulomb_nm, friction.static_nm) == (6.0, 9.0)
    other = replace(settings, plant=replace(settings.plant, friction=friction))
    changed, made = make_plant(plant, settings), make_plant(plant, other)
    for each in (changed, made):
        each.reset(start([0.4, -0.3], [0.8, -0.8]))
    changed.set_friction(friction)
    for _ in range(20):
        a, b = (each.step(np.array([2.0, 1.0])) for each in (changed, made))
        assert np.array_equal(a.qd_radps, b.qd_radps)
    for each in (changed, made):
        each.close()


def test_torque_loss_is_seen_in_the_delivered_effort_and_payload_never_below_zero(settings):
    robot = free_robot(settings)
    robot.apply(perturbation_of([on('torque_loss', 0.25, joint=1), on('payload_drop', 5.0)], 0, 2))
    assert robot.step(PERIOD_NS).effort_nm.tolist() == [20.0, 3.75]
    assert robot._ground_truth.payload_kg == 0.0
    robot.restart(start([0.4, -0.3], payload_kg=0.7))  # the fault is still on
    robot.step(PERIOD_NS)
    assert robot._ground_truth.payload_kg == 0.0
    robot.apply(no_perturbation(2))
    assert robot._ground_truth.payload_kg == 0.7


def test_tau_z_drift_stays_within_what_a_period_can_simulate(settings):
    robot = free_robot(settings)
    for amount, tau_z_s in ((-10.0, 0.02), (10.0, 102.0)):
        robot.apply(perturbation_of([on('tau_z_drift', amount)], 10_000 * MS, 2))
        assert robot._ground_truth._plant._plant._tau_z_s.item() == tau_z_s


def test_the_timeline_begins_with_the_first_command_and_where_it_is_told_to(settings):
    fault = Fault(kind='bias', at_s=0.05, for_s=0.02)
    for start_s, expected in ((0.0, [5, 6]), (0.03, [2, 3]), (0.06, []), (0.04, [1, 2])):
        schedule = FaultSchedule([fault], start_s)
        found = [k for k in range(10) if schedule.active(k * PERIOD_NS)]
        assert found == expected
    waiting = LockstepRobot('rk4', settings, start([0.4, -0.3]), 10**9)
    assert waiting.reading.driven_ns == 0
    robot = free_robot(settings)
    assert [robot.step(PERIOD_NS).driven_ns for _ in range(3)] == [10 * MS, 20 * MS, 30 * MS]
    robot.restart(start([0.4, -0.3]))
    assert [robot.step(PERIOD_NS).driven_ns for _ in range(3)] == [0, 0, 0]


def test_a_switched_fault_is_on_before_the_first_command_and_beside_the_timeline():
    schedule = FaultSchedule([Fault(kind='bias', at_s=0.0)])
    schedule.switched['drop'] = on('drop')
    assert [fault.kind for fault in schedule.active(0)] == ['drop']
    assert [fault.kind for fault in schedule.active(PERIOD_NS)] == ['bias', 'drop']
    del schedule.switched['drop']
    assert [fault.kind for fault in schedule.active(PERIOD_NS)] == ['bias']


@pytest.mark.parametrize(
    ('entry', 'says'),
    [
        ({'kind': 'dropp', 'at_s': 1.0}, "unknown kind 'dropp'; did you mean 'drop'?"),
        ({'kind': 'xyz', 'at_s': 1.0}, 'there are drop, burst'),
        ({'kind': 'drop', 'at_s': -1.0}, 'at_s: expected finite values at least 0, found -1.0'),
        ({'kind': 'drop', 'at_s': 0.0, 'for_s': -1.0}, 'for_s: expected finite values at least 0'),
        ({'kind': 'drop', 'at_s': 0.0, 'amount': 1.5}, 'an amount of 0 to 1 share, found 1.5'),
        ({'kind': 'nan', 'at_s': 0.0, 'amount': 1.0}, 'has no amount, found 1.0; leave it out'),
        ({'kind': 'silence', 'at_s': 0.0, 'joint': 0}, 'strikes all joints, found 0'),
        ({'kind': 'bias', 'at_s': 0.0, 'joint': 2}, 'a joint of 0 to 1, found 2'),
        ({'kind': 'bias', 'at_s': 0.0, 'joint': -1}, 'a joint of at least 0, found -1'),
        ({'kind': 'drop'}, "faults[0]: missing key 'at_s'"),
        ({'kind': 'drop', 'at': 1.0}, "unknown key 'at'; did you mean 'at_s'?"),
        ('drop', 'expected a table of Fault settings'),
    ],
)
def test_a_wrong_entry_is_refused_with_the_reason(entry, says):
    with pytest.raises(ConfigError) as refusal:
        parse_faults([entry], 2)
    assert says in str(refusal.value)


def test_a_scenario_file_gives_the_robot_its_own_faults(tmp_path):
    path = tmp_path / 'scenario.yaml'
    path.write_text(
        'description: others read this\nfaults:\n'
        '- {at_s: 1, kind: kill_controller}\n'
        '- {at_s: 2, for_s: 0.5, kind: bias, amount: 0.1, joint: 1}\n'
    )
    assert load_faults(path, 2) == [Fault(kind='bias', at_s=2.0, for_s=0.5, amount=0.1, joint=1)]
    assert not is_plant_fault('kill_controller')
    assert is_plant_fault('silence')


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        ('- 1', 'scenario.yaml: expected a list `faults:`'),
        ('fault: []', 'scenario.yaml: expected a list `faults:`'),
        ('faults: {kind: drop}', 'scenario.yaml: expected a list `faults:`'),
        ('faults: [{at_s: 1, kind: silense}]', "faults[0]: Fault.kind: unknown kind 'silense'"),
        ('faults: [{at_s: 1}]', "missing key 'kind'"),
        ('faults: [', 'not valid YAML'),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path, text, says):
    path = tmp_path / 'scenario.yaml'
    path.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        load_faults(path, 2)
    assert says in str(refusal.value)


def test_an_unknown_scenario_lists_the_names_there_are():
    with pytest.raises(ConfigError, match=r"one of \[.*\], found 'nonsense'"):
        faults_file('nonsense')


def test_the_processes_get_the_path_and_the_place_on_the_timeline(tmp_path):
    path = tmp_path / 'scenario.yaml'
    path.write_text('faults: []')
    values = parameters_of(Setup(faults=path, faults_start_s=2.5))['plant_node']
    assert (values['faults'], values['faults_start_s']) == (str(path), 2.5)
    assert 'faults' not in parameters_of(Setup())['plant_node']
    with pytest.raises(ConfigError, match='only a simulated robot'):
        parameters_of(Setup(faults=path, plant='none'))
