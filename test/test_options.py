# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import argparse
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest

from metactl_ros.cli import VERBS
from metactl_ros.errors import ConfigError
from metactl_ros.options import (
    add_arguments,
    argument,
    CONTROLLER_PARAMETERS,
    ControllerOptions,
    defaults_of,
    from_arguments,
    from_texts,
    launch_arguments,
    option,
    options_of,
    PLANT_PARAMETERS,
    PlantOptions,
    require_sound_parameters,
    shared,
)

FLAGS = {
    'up': {
        *('--controller', '--policy', '--policy-sha256', '--classical-file', '--arm'),
        *('--controller-file', '--joint-prefix', '--reference', '--autostart', '--no-autostart'),
        *('--shadow', '--plant', '--no-loopback', '--tau-z', '--payload', '--seed', '--duration'),
        *('--namespace', '--params-file', '--record', '--faults', '--use-sim-time'),
        '--log-level',
    },
    'demo': {'--out', '--seed', '--payload', '--duration', '--arm'},
    'bench': {
        *('--out', '--duration', '--silences', '--kills', '--headlines', '--only', '--policy'),
    },
    'record': {'--out', '--topics', '--namespace', '--duration'},
    'replay': {
        *('--bundle', '--controller', '--classical-file', '--out', '--arm'),
        *('--controller-file', '--node'),
    },
    'hil': {'--all', '--random', '--minutes', '--seed', '--out', '--arm'},
    'inspect': set(),
    'adapt': {'--arm', '--out', '--policy'},
}


@dataclass(frozen=True, kw_only=True)
class Tea:
    """All kinds of options."""

    cup: Path = argument('where it goes', metavar='CUP')
    sorts: tuple[str, ...] = option((), 'which', metavar='SORT')
    sugar_kg: float = option(0.01, 'how much', name='sugar', metavar='KG')
    spoons: int = option(1, 'to stir')
    is_hot: bool = option(True, 'heat it', name='hot')
    is_green: bool = option(False, 'another leaf', name='green')
    milk: bool | None = option(None, 'or none', default_help='as usual', example='true')
    note: str = option('', 'on the cup')
    arm_file: Path | None = shared(None, ControllerOptions, 'arm_file')
    inner: int = 3


def parse(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser, Tea)
    return from_arguments(Tea, parser.parse_args(['cup', *words]))


def flags_of(cls):
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser, cls)
    return {flag for action in parser._actions for flag in action.option_strings}


def test_without_words_every_option_has_its_default():
    assert parse() == Tea(cup=Path('cup'))


def test_every_type_is_read_from_the_command_line():
    words = '--sorts a b --sugar 0.5 --spoons 2 --no-hot --green --no-milk --note x --arm f'
    assert parse(*words.split()) == Tea(
        cup=Path('cup'),
        sorts=('a', 'b'),
        sugar_kg=0.5,
        spoons=2,
        is_hot=False,
        is_green=True,
        milk=False,
        note='x',
        arm_file=Path('f'),
    )


@pytest.mark.parametrize('words', [['--spoons', 'x'], ['--inner', '4'], ['--sugar']])
def test_wrong_use_ends_with_code_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(*words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize('verb', VERBS)
def test_the_options_of_a_verb_keep_their_names(verb):
    assert flags_of(VERBS[verb].options) == FLAGS[verb]


def test_the_texts_of_a_launch_file_give_the_same_options_as_its_defaults():
    made = launch_arguments(ControllerOptions)
    texts = {name: one.default for name, one in made.items()}
    assert from_texts(ControllerOptions, texts) == ControllerOptions()
    assert made['reference'].choices == ['', 'sinusoid', 'trajectory']
    assert made['shadow'].default == 'false'


@pytest.mark.parametrize(
    ('options', 'specs'),
    [(ControllerOptions, CONTROLLER_PARAMETERS), (PlantOptions, PLANT_PARAMETERS)],
)
def test_every_option_of_a_node_is_one_of_its_parameters(options, specs):
    assert set(options_of(options)) <= set(specs)


def test_an_option_and_its_parameter_have_the_same_default_unless_that_is_left_open():
    """Only what is not the default is passed on to a node, and overrules its parameter file."""
    usual = defaults_of('controller_node.yaml')
    defaults = {f.name: f.default for f in fields(ControllerOptions)}
    differ = {name for name, default in defaults.items() if default != usual[name]}
    assert differ == {'autostart', 'reference', 'payload_kg'}
    assert all(not defaults[name] for name in differ)


NEEDS_ROS = "needs ROS: pip install 'metactl_ros[ros]'"
NODES = {
    'controller_node.yaml': CONTROLLER_PARAMETERS,
    'plant_node.yaml': PLANT_PARAMETERS,
}


class FakeNode:
    """A node that keeps what is declared."""

    def __init__(self):
        self.declared, self._parameter_overrides = {}, {}

    def declare_parameter(self, name, default, descriptor):
        self.declared[name] = (default, descriptor)


def controller_values(**changed):
    return defaults_of('controller_node.yaml') | changed


@pytest.mark.parametrize('file', NODES)
def test_every_parameter_has_one_default_and_it_lies_within_its_bounds(file):
    defaults = defaults_of(file)
    assert set(defaults) == set(NODES[file])
    for name, spec in NODES[file].items():
        if spec.bounds is not None:
            assert {type(bound) for bound in spec.bounds} == {type(defaults[name])}
            assert spec.bounds[0] <= defaults[name] <= spec.bounds[1]


def test_the_defaults_are_valid_for_two_joints():
    require_sound_parameters(controller_values(), 2)


@pytest.mark.parametrize('name', ['controller', 'reference'])
def test_a_choice_that_is_none_is_refused_with_the_choices(name):
    with pytest.raises(ConfigError, match=rf"{name}: expected one of \('.*found 'polcy'"):
        require_sound_parameters(controller_values(**{name: 'polcy'}), 2)


@pytest.mark.parametrize('name', ['amplitude_rad', 'omega_radps', 'phase_rad', 'centre_rad'])
@pytest.mark.parametrize('value', [[], [0.1], [0.1] * 3, [0.1, np.nan], [np.inf, 0.1]])
def test_a_sinusoid_that_is_not_finite_or_not_per_joint_is_refused(name, value):
    expected = rf'sinusoid\.{name}: expected 2 finite numbers, one per joint, found \['
    values = controller_values(reference='sinusoid', **{f'sinusoid.{name}': value})
    with pytest.raises(ConfigError, match=expected):
        require_sound_parameters(values, 2)


def test_a_sinusoid_that_nobody_asks_for_may_be_of_another_arm():
    values = controller_values(reference='trajectory', **{'sinusoid.phase_rad': [0.1]})
    require_sound_parameters(values, 7)


@pytest.mark.ros
@pytest.mark.parametrize('file', NODES)
def test_every_parameter_is_declared_with_its_text_and_its_range(file):
    spin = pytest.importorskip('metactl_ros.ros.spin', reason=NEEDS_ROS)
    node, defaults = FakeNode(), defaults_of(file)
    spin.declare_parameters(node, NODES[file], file)
    assert set(node.declared) == set(defaults)
    for name, spec in NODES[file].items():
        default, descriptor = node.declared[name]
        assert (default, descriptor.description) == (defaults[name], spec.description)
        assert descriptor.read_only == spec.is_fixed
        is_real = isinstance(default, float)
        ranges = descriptor.floating_point_range, descriptor.integer_range
        found = [(bounds.from_value, bounds.to_value) for bounds in ranges[not is_real]]
        assert found == ([] if spec.bounds is None else [spec.bounds])
        assert not len(ranges[is_real])


@pytest.mark.ros
def test_a_misspelt_parameter_is_refused_with_a_suggestion_and_a_foreign_one_is_not():
    spin = pytest.importorskip('metactl_ros.ros.spin', reason=NEEDS_ROS)
    node = FakeNode()
    node._parameter_overrides = {'use_sim_time': True, 'policy': ''}
    spin.declare_parameters(node, CONTROLLER_PARAMETERS, 'controller_node.yaml')
    node._parameter_overrides['state_timeout'] = 1.0
    expected = "parameter state_timeout: unknown; did you mean 'state_timeout_s'?"
    with pytest.raises(ConfigError, match=expected):
        spin.declare_parameters(node, CONTROLLER_PARAMETERS, 'controller_node.yaml')


@pytest.mark.ros
def test_a_value_that_does_not_fit_is_refused_with_its_name():
    exceptions = pytest.importorskip('rclpy.exceptions', reason=NEEDS_ROS)
    from metactl_ros.ros.spin import declare_parameters

    node = FakeNode()

    def refuse(name, *_):
        raise exceptions.InvalidParameterValueException(name, 'x', 'expected a number')

    node.declare_parameter = refuse
    with pytest.raises(ConfigError, match=r'parameter controller: .*expected a number'):
        declare_parameters(node, CONTROLLER_PARAMETERS, 'controller_node.yaml')
