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

from bundles import (
    change_contract,
    golden_of,
    made_bundle,
    npy_claiming,
    npz,
    refusal,
    reseal,
    zip_of,
)
import numpy as np
import onnxruntime
import pytest

from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.modes import Mode
from metactl_ros.evaluation.rollout import run_episode, without_warmup
from metactl_ros.plant.rk4_arm import Rk4Arm
from metactl_ros.policy.bundle import load_bundle, read_bundle
from metactl_ros.policy.contract import hash_of
from metactl_ros.policy.inspect import run_inspect
from metactl_ros.policy.sealed import MOST_BYTES
from metactl_ros.task import draw_evaluation

ROOT = Path(__file__).resolve().parents[1]
CONTENT = sorted(name for name in MOST_BYTES if name != 'SHA256SUMS')
W, F, M = 5, 11, 8


@pytest.fixture(scope='module')
def made(settings, tmp_path_factory):
    return made_bundle(tmp_path_factory, settings)


@pytest.fixture
def spoilt(made, tmp_path):
    """A copy to spoil."""
    return Path(shutil.copytree(made, tmp_path / 'spoilt.metactl'))


@pytest.fixture
def load(settings):
    return lambda path: load_bundle(path, settings.arm, settings.controller)


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
    assert sorted(opened) == sorted([str(made), *MOST_BYTES])


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
    code = (
        'import sys\nfrom pathlib import Path\nfrom metactl_ros.policy.bundle import *\n'
        'events = []\nsys.addaudithook(lambda name, _: events.append(name))\n'
        'refused = 0\n'
        'for path in sys.argv[1:]:\n'
        '    try: read_bundle(Path(path))\n'
        '    except BundleError: refused += 1\n'
        'assert "open" in events\n'
        'print(refused, "pickle.find_class" in events, {"onnx", "torch"} & set(sys.modules))'
    )
    done = subprocess.run(
        [sys.executable, '-c', code, *map(str, cases)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == '5 False set()', done.stderr
    assert not canary.exists()
    pickle.loads(payload)
    assert canary.exists()  # the canary would have sung


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
        (b'[' * 100_000, 'not JSON'),
        (b'[]', 'schema_version: expected 1, found None'),
        (b'{}', 'schema_version: expected 1, found None'),
        (b'{"schema_version": 2}', 'schema_version: expected 1, found 2'),
        (b'{"schema_version": "1"}', "schema_version: expected 1, found '1'"),
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
        ('context.num_rows', 10**400, 'too large'),
        ('context.num_rows', 6, 'expected input and output'),
        ('context.num_extra', 1, 'features: expected'),
        ('context.num_extra', 10**12, 'features: expected'),
        ('features', ['q'] * F, 'features: expected'),
        ('arm_sha256', '0' * 64, 'arm_sha256: expected'),
        ('gain_box.feed_forward', [], 'expected input and output'),
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


# What is refused: golden vectors, card


@pytest.mark.parametrize(
    ('change', 'reason'),
    [
        (lambda w, a: npz(window=w, action=a + 2e-6), 'found a difference of 2e-06'),
        (lambda w, a: npz(window=w, action=np.where(a == a[3, 3], np.nan, a)), 'finite'),
        (lambda w, a: npz(window=np.full_like(w, np.inf), action=a), 'finite'),
        (lambda w, a: npz(window=w, action=a[:, :-1]), 'of shapes'),
        (lambda w, a: npz(window=w, action=a[1:]), 'of shapes'),
        (lambda w, a: npz(window=w[:, 1:], action=a), 'of shapes'),
        (lambda w, a: npz(window=w[:0], action=a[:0]), 'at least one'),
        (lambda w, a: npz(window=w), "KeyError: 'action"),
        (lambda w, a: npz(np.savez_compressed, window=w, action=a), 'not compressed'),
        (lambda w, a: npz(window=w.astype(object), action=a), 'allow_pickle=False'),
        (lambda w, a: npz(window=w.astype('S8'), action=a), 'TypeError'),
        (lambda w, a: b'PK\x03\x04 and no more', 'BadZipFile'),
        (lambda w, a: zip_of(window=npy_claiming((10**12, W, F)), action=b''), 'golden.npz'),
        (lambda w, a: zip_of(window=b'no array', action=b'at all'), 'AttributeError'),
    ],
)
def test_golden_vectors_that_prove_nothing_are_refused(spoilt, load, change, reason):
    data = change(*golden_of(spoilt))
    assert reason in refusal(load, reseal(spoilt, golden_npz=data))


def test_golden_vectors_may_differ_by_rounding(spoilt, load):
    window, action = golden_of(spoilt)
    load(reseal(spoilt, golden_npz=npz(window=window, action=action + 5e-7)))


def test_a_card_that_is_not_text_is_refused(spoilt, load):
    assert f'{spoilt / "card.md"}: cannot be used' in refusal(
        load, reseal(spoilt, card_md=b'\xff')
    )


# metactl inspect


def test_inspect_shows_the_card_of_a_sound_bundle(made, capsys):
    assert run_inspect(made) == 0
    shown = capsys.readouterr().out
    assert (made / 'card.md').read_text() in shown
    assert 'verified' in shown
    assert read_bundle(made).sha256 in shown


def test_inspect_keeps_orders_to_the_terminal_from_it(spoilt, capsys):
    run_inspect(reseal(spoilt, card_md='# a\x1b[2J\x07\u202eb\n'.encode()))
    assert capsys.readouterr().out.startswith('# a[2Jb\n')


def test_inspect_refuses_a_damaged_bundle(spoilt):
    (spoilt / 'card.md').write_text('better than it is')
    refusal(run_inspect, spoilt)


def test_a_contract_survives_json_to_the_last_bit(settings, made):
    contract = read_bundle(made).contract
    assert contract.lyapunov == settings.controller.lyapunov
    assert contract.arm == settings.arm
    assert json.loads((made / 'contract.json').read_text())['law']['rate_hz'] == 100.0
