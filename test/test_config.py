# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
from dataclasses import dataclass
import sys
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import yaml

from metactl_ros import settings as settings_module
from metactl_ros.config import (
    build,
    for_joints,
    joint_array,
    LATER,
    MAX_ENTRIES,
    MAX_PROBLEMS,
    MAX_TEXT,
    one_for_all,
    PerJoint,
    require_joints,
    scaled,
    shown,
    stated,
)
from metactl_ros.control.gain_map import GainBox
from metactl_ros.errors import ConfigError, MetactlError
from metactl_ros.settings import (
    build_settings,
    load_arm,
    load_settings,
    PlantSettings,
    provenance,
    share_directory,
    usual_plant,
)


@pytest.fixture
def shipped():
    """Return a function that gives a fresh copy of a shipped YAML file."""

    def read(name):
        return yaml.safe_load((share_directory() / 'config' / name).read_text(encoding='utf-8'))

    return read


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a mapping, or text, to a YAML file."""

    def write(content, name='file.yaml'):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write


def test_a_misspelt_key_is_rejected_with_a_suggestion(shipped, written):
    arm = shipped('arm.yaml')
    arm['link_mases_kg'] = arm.pop('link_masses_kg')
    with pytest.raises(ConfigError) as caught:
        load_arm(written(arm, 'arm.yaml'))
    first, second = str(caught.value).splitlines()
    assert first == "arm.yaml: unknown key 'link_mases_kg'; did you mean 'link_masses_kg'?"
    assert second.startswith("arm.yaml: missing key 'link_masses_kg'; add it (a list")


def test_a_key_like_no_other_is_answered_with_the_valid_ones(shipped, written):
    with pytest.raises(ConfigError, match=r"unknown key 'xyzzy'; valid keys are \['gravity_mps2'"):
        load_arm(written(shipped('arm.yaml') | {'xyzzy': 1}))


@pytest.mark.parametrize(
    ('file', 'path', 'value', 'message'),
    [
        (
            'arm.yaml',
            ['link_masses_kg'],
            [-6.0, 4.0],
            'link_masses_kg: expected finite values abo',
        ),
        ('arm.yaml', ['link_masses_kg'], [6.0], r'expected 2 entries, one per joint, found 1'),
        ('arm.yaml', ['link_masses_kg'], 6.0, 'expected a list, each entry a finite number'),
        ('arm.yaml', ['link_masses_kg'], [6.0, float('nan')], r'link_masses_kg\[1\]: .*found nan'),
        ('arm.yaml', ['gravity_mps2'], float('inf'), 'gravity_mps2: expected a finite number'),
        ('arm.yaml', ['gravity_mps2'], 10**400, 'at most 40 characters, found 401'),
        ('arm.yaml', ['gravity_mps2'], -9.81, 'expected 0 to 100 m/s'),
        ('arm.yaml', ['gravity_mps2'], True, 'expected a finite number, found True'),
        ('arm.yaml', ['joint_names'], ['a', 'a'], 'names must differ'),
        ('arm.yaml', ['joint_names'], [1, 2], r'joint_names\[0\]: expected a text, found 1'),
        (
            'arm.yaml',
            ['limits', 'effort_nm'],
            [0.0, 1.0],
            'effort_nm: expected finite values abov',
        ),
        ('arm.yaml', ['limits'], 3, 'expected a table of JointLimits settings, found 3'),
        ('plant.yaml', ['friction', 'coulomb_nm'], -1.0, 'coulomb_nm: expected finite values at'),
        ('plant.yaml', ['friction', 'smoothing_velocity_radps'], 0.01, 'chatters at rest'),
        (
            'plant.yaml',
            ['friction', 'smoothing_velocity_radps'],
            [0.12, 0.01],
            'expected at least 0.0.* for joint2 at 100.0 Hz, found 0.01; below it the arm chatter',
        ),
        ('plant.yaml', ['friction', 'viscous_nmsprad'], [0.5], 'viscous_nmsprad: expected 2 ent'),
        ('controller.yaml', ['law', 'nominal_kd_per_s'], [3.0], 'nominal_kd_per_s: expected 2 e'),
        ('controller.yaml', ['gain_box', 'kd_per_s'], [[1, 60]] * 3, 'kd_per_s: expected 2 entr'),
        ('plant.yaml', ['task', 'amplitude_rad'], [0.8], 'expected 2 entries'),
        ('plant.yaml', ['task', 'payload_levels_kg'], [float('nan')], 'found nan'),
        ('plant.yaml', ['sensing', 'encoder_bits'], 12.5, 'expected a whole number, found 12.5'),
        ('plant.yaml', ['sensing', 'encoder_bits'], 33, 'at most 32'),
        ('plant.yaml', ['sensing', 'actuator_limit_nm'], [1.0], 'expected 2 entries'),
        ('plant.yaml', ['sensing', 'tau_z_drift_to_s'], 0.0, 'tau_z_drift_to_s: expected finite'),
        ('plant.yaml', ['substep_hz'], 0.0, 'substep_hz: expected finite values above 0'),
        ('controller.yaml', ['gain_box', 'kd_per_s'], [60.0, 10.0], 'finite and in this order'),
        ('controller.yaml', ['gain_box', 'kd_per_s'], [10.0], 'finite and in this order'),
        ('controller.yaml', ['context', 'num_rows'], 0, 'num_rows: expected finite values above'),
        ('controller.yaml', ['context', 'horizon_s'], 0.0, 'horizon_s: expected finite values'),
        ('controller.yaml', ['modes', 'blind_ramp_s'], -1.0, 'blind_ramp_s: expected finite'),
        ('controller.yaml', ['lyapunov', 'alpha_per_s'], 0.0, 'alpha_per_s: expected finite'),
        ('controller.yaml', ['law', 'rate_hz'], '100', "expected a finite number, found '100'"),
    ],
)
def test_a_bad_value_is_refused_by_name(shipped, written, file, path, value, message):
    mapping = shipped(file)
    *parents, last = path
    table = mapping
    for key in parents:
        table = table[key]
    table[last] = value
    with pytest.raises(ConfigError, match=message):
        load_settings(**{file.removesuffix('.yaml'): written(mapping, file)})


def test_all_problems_are_reported_at_once(shipped, written):
    arm = shipped('arm.yaml')
    arm['gravity_mps2'] = 'down'
    arm['link_lengths_m'] = None
    del arm['joint_names']
    with pytest.raises(ConfigError) as caught:
        load_arm(written(arm))
    assert len(str(caught.value).splitlines()) == 3


def test_of_very_many_problems_the_first_are_reported(shipped, written):
    arm = shipped('arm.yaml') | {f'key{number}': number for number in range(1000)}
    with pytest.raises(ConfigError) as caught:
        load_arm(written(arm))
    lines = str(caught.value).splitlines()
    assert len(lines) == MAX_PROBLEMS
    assert lines[-1] == 'file.yaml: and perhaps more; correct these first.'


def test_what_a_value_says_of_itself_is_cut_short(shipped, written):
    arm = shipped('arm.yaml') | {'joint_names': ['a' * 5000, 'a' * 5000]}
    with pytest.raises(ConfigError, match='names must differ') as caught:
        load_arm(written(arm))
    assert len(str(caught.value)) < 2 * MAX_TEXT


def test_a_list_has_a_most_of_entries(shipped, written):
    arm = shipped('arm.yaml') | {'link_masses_kg': [1.0] * (MAX_ENTRIES + 1)}
    with pytest.raises(ConfigError, match='expected at most 10000 entries, found 10001'):
        load_arm(written(arm))


def test_a_whole_number_fits_into_64_bits(shipped):
    plant = shipped('plant.yaml')
    plant['sensing']['encoder_bits'] = 2**63
    with pytest.raises(ConfigError, match='encoder_bits: expected a whole number, found 92233'):
        build(PlantSettings, plant, 'plant.yaml')


@pytest.mark.parametrize(
    'value',
    [
        'x' * 10**6,
        ['x' * 10**6] * 10**5,
        {f'{k}' * 100: 'x' * 100 for k in range(1000)},
        10**5000,
        -(10**5000),
        [[[[[[[[[[[]]]]]]]]]]],
        b'x' * 10**6,
    ],
    ids=range(7),
)
def test_a_large_value_is_shown_in_few_characters(value):
    assert 0 < len(shown(value)) <= MAX_TEXT


@pytest.mark.parametrize('value', [1, 'a', None, 2.5, [1, 'b', {'a': [1]}], -(10**60)])
def test_a_small_value_is_shown_as_it_is(value):
    assert shown(value) == repr(value)


def test_a_key_given_twice_is_refused(written):
    with pytest.raises(
        ConfigError, match=r"file.yaml: .*'gravity_mps2' is given twice \(line 2\)"
    ):
        load_arm(written('gravity_mps2: 1.0\ngravity_mps2: 2.0\n'))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r'nowhere.yaml: cannot be read'):
        load_arm(tmp_path / 'nowhere.yaml')


def test_an_empty_file_is_refused(written):
    with pytest.raises(ConfigError, match='expected a table of Arm settings, found None'):
        load_arm(written(''))


def test_a_package_without_its_configuration_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(settings_module, '__file__', str(tmp_path / 'a' / 'b' / 'settings.py'))
    with pytest.raises(ConfigError, match='install metactl_ros again'):
        share_directory()


def test_a_configuration_beside_the_installed_package_is_found(monkeypatch, tmp_path):
    module = tmp_path / 'lib' / 'python3.12' / 'site-packages' / 'metactl_ros' / 'settings.py'
    share = tmp_path / 'share' / 'metactl_ros'
    (share / 'config').mkdir(parents=True)
    (share / 'config' / 'arm.yaml').touch()
    monkeypatch.setattr(settings_module, '__file__', str(module))
    assert share_directory() == share


def test_settings_cannot_be_changed_after_loading(settings):
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.arm.gravity_mps2 = 1.0


def test_a_setting_written_back_builds_the_same_value(settings):
    again = build_settings(dataclasses.asdict(settings), 'again')
    assert again == settings


def test_friction_and_gains_may_be_stated_per_joint(shipped, written):
    plant, controller = shipped('plant.yaml'), shipped('controller.yaml')
    plant['friction']['viscous_nmsprad'] = [0.5, 0.25]
    controller['law']['nominal_kd_per_s'] = [30.0, 25.0]
    controller['gain_box']['kd_per_s'] = [[10.0, 60.0], [12.0, 50.0]]
    found = load_settings(
        plant=written(plant, 'plant.yaml'), controller=written(controller, 'controller.yaml')
    )
    assert found.plant.friction.viscous_nmsprad == (0.5, 0.25)
    assert found.controller.law.nominal_kd_per_s == (30.0, 25.0)
    assert found.controller.gain_box.kd_per_s == ((10.0, 60.0), (12.0, 50.0))


def test_numbers_built_in_code_are_held_to_the_same_rules():
    with pytest.raises(MetactlError, match='kd_per_s: expected'):
        GainBox(kd_per_s=(1, float('nan')), lambda_per_s=(1, 2), feed_forward=())


@dataclasses.dataclass(frozen=True)
class Circle:
    radius_m: float
    colour: str = 'red'


@dataclasses.dataclass(frozen=True)
class Square:
    side_m: float
    colour: str = 'red'


@dataclasses.dataclass(frozen=True)
class Picture:
    shapes: tuple[Circle | Square, ...]


def test_of_several_dataclasses_the_one_is_built_whose_own_key_is_given():
    found = build(Picture, {'shapes': [{'side_m': 2, 'radius_m': None}, {'radius_m': 1}]}, 'here')
    assert found.shapes == (Square(2.0), Circle(1.0))


@pytest.mark.parametrize(
    ('shape', 'says'),
    [
        ({'colour': 'blue'}, r"expected exactly one of \['radius_m', 'side_m'\], found \[\]"),
        ({'side_m': 1.0, 'radius_m': 1.0}, 'expected exactly one of'),
        ({'sid_m': 1.0}, "unknown key 'sid_m'; did you mean"),
        ({'side_m': 'long'}, 'side_m: expected a finite number'),
        (None, 'expected a table, found None'),
    ],
)
def test_a_mapping_of_none_or_of_several_of_them_is_refused(shape, says):
    with pytest.raises(ConfigError, match=says):
        build(Picture, {'shapes': [shape]}, 'here')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Older:
    kept: float | None = None
    added: float | None = dataclasses.field(default=None, metadata=LATER)


def test_what_is_written_leaves_out_keys_that_came_later_and_were_not_given():
    assert stated(Older()) == {'kept': None}
    assert stated(Older(added=2.0)) == {'kept': None, 'added': 2.0}
    assert stated({'x': (Older(), [Older(kept=1.0)])}) == {'x': ({'kept': None}, [{'kept': 1.0}])}
    assert build(Older, stated(Older(added=2.0)), 'older') == Older(added=2.0)


def test_the_shipped_settings_are_written_as_before_there_were_later_keys():
    written = provenance(load_settings())['settings']
    assert 'kp_per_s2' not in written['controller']['gain_box']
    assert 'rho_nm' not in written['controller']['lyapunov']
    assert 'position_lower_rad' not in written['arm']['limits']
    assert build_settings(written, 'settings') == load_settings()


numbers = st.floats(-1e6, 1e6)
lists = st.lists(numbers, min_size=1, max_size=5).map(tuple)


@dataclass(frozen=True)
class Joints:
    stiffness: PerJoint
    damping: PerJoint
    title: str = ''


@given(value=numbers, num_joints=st.integers(1, 5))
def test_one_number_is_that_of_every_joint(value, num_joints):
    assert for_joints(value, num_joints).tolist() == [value] * num_joints
    assert joint_array(value) == value
    assert one_for_all('x', value) == value
    assert scaled(2.0, value) == 2.0 * value
    require_joints(Joints(value, value), num_joints)


@given(values=lists)
def test_a_list_has_the_number_of_each_joint(values):
    assert for_joints(values, len(values)).tolist() == list(values)
    np.testing.assert_array_equal(joint_array(values), values)
    assert scaled(2.0, values) == tuple(2.0 * value for value in values)
    require_joints(Joints(values, 1.0), len(values))
    require_joints(Joints(values, values))


def test_another_number_of_entries_is_refused_with_key_joints_and_what_was_found():
    says = r'Joints\.damping: expected 3 entries, one per joint, found 2: \[1\.0, 2\.0\]'
    with pytest.raises(ConfigError, match=says):
        require_joints(Joints(1.0, (1.0, 2.0)), 3)
    with pytest.raises(ConfigError, match=says):
        require_joints(Joints((1.0, 2.0, 3.0), (1.0, 2.0)))


def test_a_list_is_refused_where_only_one_number_will_do():
    with pytest.raises(ConfigError, match=r'x: expected one number for all joints, found \[1'):
        one_for_all('x', (1.0, 2.0))


@pytest.mark.parametrize('stated', [2.0, [1.0, 2.0], 3, [3, 4.5]])
def test_what_a_file_states_is_kept_as_it_was(stated):
    found = build(Joints, {'stiffness': stated, 'damping': 1.0}, 'file').stiffness
    assert found == (tuple(stated) if isinstance(stated, list) else stated)
    each = found if isinstance(found, tuple) else (found,)
    assert all(type(value) is float for value in each)


@pytest.mark.parametrize('stated', ['stiff', ['stiff'], [[1.0]], None, {'a': 1.0}, float('inf')])
def test_what_is_neither_a_number_nor_a_list_of_them_is_refused(stated):
    says = 'file: stiffness: expected a finite number, or a list, each entry a finite number, fo'
    with pytest.raises(ConfigError, match=says):
        build(Joints, {'stiffness': stated, 'damping': 1.0}, 'file')


def test_a_missing_key_says_what_may_be_stated():
    says = r"missing key 'damping'; add it \(a finite number, or a list, each entry a finite n"
    with pytest.raises(ConfigError, match=says):
        build(Joints, {'stiffness': 1.0}, 'file')


def test_the_usual_plant_of_the_two_link_arm_is_one_that_is_installed(monkeypatch):
    arm = load_arm()
    monkeypatch.setitem(sys.modules, 'pybullet', None)  # as if it were not
    assert usual_plant(arm) == 'rk4'
    monkeypatch.setitem(sys.modules, 'pybullet', SimpleNamespace(__spec__='any'))
    assert usual_plant(arm) == 'bullet'
