# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import json
import os
from pathlib import Path
import pickle
import shutil
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
from support.bundles import (
    change_contract,
    golden_of,
    npz,
    refusal,
    reseal,
)

from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Mode
from metactl_ros.policy.bundle import inspect_bundle, load_bundle, MAX_BYTES, read_bundle
from metactl_ros.policy.contract import hash_of
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import run_episode, without_warmup
from metactl_ros.sim.task import draw_evaluation

ROOT = Path(__file__).resolve().parents[2]
CONTENT = sorted(name for name in MAX_BYTES if name != 'SHA256SUMS')
W, F, M = 5, 11, 8


@pytest.fixture(scope='module')
def policy(made):
    return read_bundle(made).policy


# What is loaded


def test_only_the_window_comes_from_the_bundle(settings, made):
    own = replace(settings.controller, modes=replace(settings.controller.modes, warmup_ticks=3))
    bundle = load_bundle(made, settings.arm, own)
    assert own.context.num_rows == 50
    assert bundle.contract.context.num_rows == W
    assert bundle.controller == replace(own, context=bundle.contract.context)


def test_the_policy_gives_the_golden_actions(made, policy):
    window, action = golden_of(made)
    assert window.shape == (40, W, F)
    assert action.shape == (40, M)
    np.testing.assert_allclose(policy(window), action, rtol=0, atol=1e-6)
    assert np.abs(action).max() <= 1.0


def test_a_batch_gives_the_same_actions_as_its_windows_one_by_one(made, policy):
    window = golden_of(made)[0].astype(np.float64)
    batch = policy(window.reshape(8, 5, W, F))
    assert batch.shape == (8, 5, M)
    assert batch.dtype == np.float64
    one_by_one = np.stack([policy(one) for one in window])
    np.testing.assert_array_equal(batch.reshape(40, M), one_by_one)


def test_a_bundle_drives_the_loop(settings, made, load):
    bundle = load(made)
    controller = without_warmup(bundle.controller)
    plant = Rk4Arm(settings.arm, settings.plant.friction, controller.law.rate_hz)
    episodes = draw_evaluation(settings.plant.task, 3, 0.75, 2, 2.0)
    log = run_episode(plant, episodes, bundle.policy, ControlLoop(settings.arm, controller), 20)
    assert np.isfinite(log.q_rad).all()
    assert not log.modes.any()


def test_a_number_beyond_float32_ends_in_the_nominal_gains(settings, made, load):
    bundle = load(made)
    loop = ControlLoop(settings.arm, without_warmup(bundle.controller))
    episode = draw_evaluation(settings.plant.task, 3, 0.75, 1, 2.0).of_arm(0)
    state = Rk4Arm(settings.arm, settings.plant.friction, 100.0).reset(episode.start)
    reference = episode.reference.at(0.0)
    loop.reset(state)
    action = bundle.policy(loop.observe(state, reference, 1e300))
    assert np.isnan(action).all()
    step = loop.actuate(action, state, reference, state.stamp_ns)
    assert step.modes == Mode.FALLBACK
    np.testing.assert_array_equal(step.decision.gains.theta, [30, 30, 5, 5, 0, 0, 0, 0])


def test_the_session_has_one_thread(policy):
    options = policy._session.get_session_options()
    assert options.intra_op_num_threads == options.inter_op_num_threads == 1
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    assert options.get_session_config_entry('session.load_model_format') == 'ONNX'
    basic = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.graph_optimization_level == basic  # with more, 1.20 cannot run float64
    assert policy._session.get_providers() == ['CPUExecutionProvider']


def test_a_loaded_policy_does_not_need_its_files(spoilt, load):
    window, action = golden_of(spoilt)
    bundle = load(spoilt)
    shutil.rmtree(spoilt)
    np.testing.assert_allclose(bundle.policy(window), action, rtol=0, atol=1e-6)


def test_each_file_is_opened_once(made, load, monkeypatch):
    """What was hashed is what is parsed: there is no second look at the disk."""
    real, opened = os.open, []

    def recording(path, *args, **kwargs):
        opened.append(str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, 'open', recording)
    load(made)
    assert sorted(opened) == sorted([str(made), *MAX_BYTES])


def test_loading_leaves_no_descriptor_open(spoilt, load):
    before = len(list(Path('/proc/self/fd').iterdir()))
    load(spoilt)
    (spoilt / 'card.md').unlink()
    (spoilt / 'card.md').mkdir()
    refusal(load, spoilt)
    assert len(list(Path('/proc/self/fd').iterdir())) == before


def test_the_seal_is_what_sha256sum_checks(made):
    subprocess.run(['sha256sum', '-c', 'SHA256SUMS'], cwd=made, check=True, capture_output=True)


def test_loading_needs_neither_onnx_nor_torch_and_unpickles_nothing(made, tmp_path):
    """A canary in every file, and an audit hook, in a fresh process."""
    canary = tmp_path / 'canary'
    payload = pickle.dumps(Canary(canary))
    objects = np.array([Canary(canary)], dtype=object)
    hostile = {
        'golden_npz': [npz(window=objects, action=objects), payload],
        'policy_onnx': [payload],
        'contract_json': [payload],
        'SHA256SUMS': [payload],
    }
    cases = [made]
    for name, contents in hostile.items():
        for number, data in enumerate(contents):
            copy = shutil.copytree(made, tmp_path / f'{name}{number}.metactl')
            cases.append(reseal(copy, **{name: data}))
            if name == 'SHA256SUMS':
                (copy / name).write_bytes(data)
    site, notes = tmp_path / 'site', tmp_path / 'notes'
    site.mkdir()
    (site / 'sitecustomize.py').write_text(HOOK.format(notes=str(notes)))
    code = (
        'import sys\nfrom pathlib import Path\nfrom metactl_ros.policy.bundle import *\n'
        'refused = 0\n'
        'for path in sys.argv[1:]:\n'
        '    try: read_bundle(Path(path))\n'
        '    except BundleError: refused += 1\n'
        'print(refused)'
    )
    done = subprocess.run(
        [sys.executable, '-c', code, *map(str, cases)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {'PYTHONPATH': f'{site}:{ROOT}'},
    )
    assert done.stdout.strip() == '5', done.stderr
    heard = notes.read_text().split()
    assert set(heard) == {'hears', 'onnxruntime'}
    assert heard.count('hears') == 1 + 4  # here, and wherever a bundle was verified
    assert not canary.exists()
    pickle.loads(payload)
    assert canary.exists()  # the canary would have sung


HOOK = """
import sys
file = open({notes!r}, 'a', buffering=1)
def note(event, args):
    if event == 'import' and args[0] in ('onnx', 'onnxruntime', 'torch'):
        file.write(args[0] + '\\n')
    elif event == 'pickle.find_class':
        file.write(event + '\\n')
sys.addaudithook(note)
file.write('hears\\n')
"""


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


# What is refused: the contract


@pytest.mark.parametrize(
    ('content', 'reason'),
    [
        (b'\xff', 'not JSON'),
        (b'{', 'not JSON'),
        (b'[' * 100_000, 'not JSON (maximum recursion depth exceeded'),
        (b'{"schema_version": 1, "schema_version": 2}', "key 'schema_version' is given twice"),
        (b'{"arm": {"\\u0061": 1, "a": 1}}', "key 'a' is given twice"),
        (b'[]', 'schema_version: expected 1 or 2, found None'),
        (b'{}', 'schema_version: expected 1 or 2, found None'),
        (b'{"schema_version": 3}', 'schema_version: expected 1 or 2, found 3'),
        (b'{"schema_version": 2}', "missing key 'training'"),
        (b'{"schema_version": "1"}', "schema_version: expected 1 or 2, found '1'"),
        (b'{"schema_version": 1}', "missing key 'arm'"),
    ],
)
def test_a_contract_of_another_kind_is_refused(spoilt, load, content, reason):
    message = refusal(load, reseal(spoilt, contract_json=content))
    assert str(spoilt / 'contract.json') in message
    assert reason in message


@pytest.mark.parametrize(
    ('key', 'value', 'reason'),
    [
        ('schema_version', True, 'expected a whole number, found True'),
        ('law.rate_hz', float('nan'), 'expected a finite number, found nan'),
        ('law.rate_hz', -1.0, 'expected finite values above 0, found -1.0'),
        ('law.rate_hz', None, "missing key 'rate_hz'"),
        ('law.rate', 100.0, "unknown key 'rate'; did you mean 'rate_hz'?"),
        ('context.num_rows', 10**400, 'a number of at most 40 characters, found 401'),
        ('law.rate_hz', 10**39, 'this robot has 100.0, the policy was made for 1e+39'),
        ('context.num_rows', 6, 'expected input and output'),
        ('context.num_extra', 1, 'features: expected'),
        ('context.num_extra', 10**12, 'features: expected'),
        ('features', ['q'] * F, 'features: expected'),
        ('arm_sha256', '0' * 64, 'arm_sha256: expected'),
        ('gain_box.feed_forward', [], 'gain_box.feed_forward: this robot has'),
        ('training', json.loads('[' * 20 + ']' * 20), 'expected at most 20 levels'),
        ('tokens.kind', 'scaled', "expected one of 'raw', 'error_scaled'"),
        ('arm.joint_names', ['joint2', 'joint1'], 'arm_sha256: expected'),
    ],
)
def test_a_contract_that_contradicts_itself_is_refused(spoilt, load, key, value, reason):
    assert reason in refusal(load, change_contract(spoilt, key, value))


def other(settings, section, **changes):
    """Return arm and controller of a robot that differs in one section."""
    arm, controller = settings.arm, settings.controller
    if section == 'arm':
        return replace(arm, **changes), controller
    if section == 'limits':
        return replace(arm, limits=replace(arm.limits, **changes)), controller
    return arm, replace(controller, **{section: replace(getattr(controller, section), **changes)})


@pytest.mark.parametrize(
    ('section', 'key', 'value'),
    [
        ('arm', 'joint_names', ('joint2', 'joint1')),
        ('arm', 'link_masses_kg', (6.0, 4.000000000000001)),
        ('arm', 'link_lengths_m', (0.7, 0.6)),
        ('arm', 'gravity_mps2', 9.8),
        ('limits', 'effort_nm', (150.0, 61.0)),
        ('limits', 'effort_rate_nmps', (4000.0, 1501.0)),
        ('limits', 'position_lower_rad', (-2.9, -1.0)),
        ('law', 'rate_hz', 50.0),
        ('law', 'slope_per_s', 4.0),
        ('gain_box', 'kd_per_s', (5.0, 60.0)),
        ('gain_box', 'feed_forward', ()),
        ('lyapunov', 'alpha_per_s', 0.5),
        ('lyapunov', 'target_error_rad', 0.0),
        ('lyapunov', 'p_matrix', ((1.0,),)),
    ],
)
def test_another_robot_refuses_the_bundle_and_names_the_difference(
    settings, made, section, key, value
):
    arm, controller = other(settings, section, **{key: value})
    message = refusal(lambda path: load_bundle(path, arm, controller), made)
    name = f'arm.limits.{key}' if section == 'limits' else f'{section}.{key}'
    assert f'{name}: this robot has {value!r}, the policy was made for' in message


def test_the_hash_of_an_arm_changes_with_a_lower_end_only_if_one_is_stated(settings):
    arm = settings.arm
    # Of config/arm.yaml before joint ranges had a lower end: bundles of that time stay good.
    assert hash_of(arm) == '79f6e1c8c8ee97a41e5cf6bc7358b585dad9d37e6872394928e9abd31f7142dd'
    lower = tuple(-x for x in arm.limits.position_rad)
    stated = replace(arm, limits=replace(arm.limits, position_lower_rad=lower))
    assert hash_of(stated) != hash_of(arm)


def test_the_first_difference_is_named(settings, made):
    arm, controller = other(settings, 'law', rate_hz=50.0, slope_per_s=4.0)
    arm = replace(arm, gravity_mps2=1.0)
    message = refusal(lambda path: load_bundle(path, arm, controller), made)
    assert 'arm.gravity_mps2: this robot has 1.0, the policy was made for 9.81' in message


def test_modes_and_window_of_the_robot_are_its_own(settings, made):
    controller = replace(
        settings.controller,
        context=replace(settings.controller.context, num_rows=99, horizon_s=7.0),
        modes=replace(settings.controller.modes, recovery_ticks=1),
    )
    assert load_bundle(made, settings.arm, controller).controller.context.num_rows == W


def test_the_hash_of_an_arm_follows_from_its_numbers_alone(settings):
    assert hash_of(settings.arm) == hash_of(replace(settings.arm))
    assert hash_of(settings.arm) != hash_of(replace(settings.arm, gravity_mps2=9.8))


@pytest.mark.parametrize('change', [str, str.upper])
def test_a_bundle_with_the_hash_that_is_trusted_is_loaded(settings, made, load, change):
    trusted = change(load(made).sha256)
    bundle = load_bundle(made, settings.arm, settings.controller, sha256=trusted)
    assert bundle.sha256 == trusted.lower()


def test_a_sound_bundle_with_another_hash_is_refused_and_both_are_told(settings, made, spoilt):
    trusted = read_bundle(made).sha256
    other = reseal(spoilt, card_md=b'another')
    message = refusal(
        lambda path: load_bundle(path, settings.arm, settings.controller, sha256=trusted), other
    )
    assert f'SHA-256 {trusted}, found {read_bundle(other).sha256}' in message


# metactl inspect


def test_inspect_shows_the_card_of_a_sound_bundle(made, capsys):
    assert inspect_bundle(made) == 0
    shown = capsys.readouterr().out
    assert (made / 'card.md').read_text() in shown
    assert 'verified' in shown
    assert read_bundle(made).sha256 in shown


def test_inspect_keeps_orders_to_the_terminal_from_it(spoilt, capsys):
    inspect_bundle(reseal(spoilt, card_md='# a\x1b[2J\x07\u202eb\n'.encode()))
    assert capsys.readouterr().out.startswith('# a[2Jb\n')


def test_inspect_refuses_a_damaged_bundle(spoilt):
    (spoilt / 'card.md').write_text('better than it is')
    refusal(inspect_bundle, spoilt)


def test_a_contract_survives_json_to_the_last_bit(settings, made):
    contract = read_bundle(made).contract
    assert contract.lyapunov == settings.controller.lyapunov
    assert contract.arm == settings.arm
    assert json.loads((made / 'contract.json').read_text())['law']['rate_hz'] == 100.0
