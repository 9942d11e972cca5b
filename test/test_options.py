# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import argparse
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from metactl_ros.cli import VERBS
from metactl_ros.options import (
    add_arguments,
    argument,
    ControllerOptions,
    from_arguments,
    from_texts,
    launch_arguments,
    option,
    options_of,
    PlantOptions,
    shared,
)
from metactl_ros.ros.parameters import CONTROLLER, defaults_of, PLANT

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
    'hil': {'--all', '--random', '--minutes', '--seed', '--out'},
    'inspect': set(),
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
    ('options', 'meanings'), [(ControllerOptions, CONTROLLER), (PlantOptions, PLANT)]
)
def test_every_option_of_a_node_is_one_of_its_parameters(options, meanings):
    assert set(options_of(options)) <= set(meanings)


def test_an_option_and_its_parameter_have_the_same_default_unless_that_is_left_open():
    """Only what is not the default is passed on to a node, and overrules its parameter file."""
    usual = defaults_of('controller_node.yaml')
    defaults = {f.name: f.default for f in fields(ControllerOptions)}
    differ = {name for name, default in defaults.items() if default != usual[name]}
    assert differ == {'autostart', 'reference', 'payload_kg'}
    assert all(not defaults[name] for name in differ)
