# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Plant, controller and recorder as processes: parameters, environment, their start and their end.

This is `metactl up`, for machines without ROS's launch packages; the launch file does the same.

Fast DDS as pip installs it has no DDS-Security, so any program that reaches a socket of a node may
drive the arm. What was measured of the ways to close it (rmw_fastrtps_cpp 8.4.3, Fast DDS 2.14.5):

    config/loopback.xml, as set up here          sockets on 127.0.0.1 only
    ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST      sockets on 0.0.0.0
    ROS_LOCALHOST_ONLY=1 beside loopback.xml     one on 0.0.0.0, one on every network address
    DEFAULT_FASTRTPS_PROFILES.xml beside it      whatever that file says: it replaces the profile

What starts and stops processes defers SIGINT and SIGTERM meanwhile. As an exception Ctrl-C may
come between any two instructions: between the start of a process and writing it down, it would
leave that process running; within rclpy's native code the exception is lost or turned into
another. Python's handlers are exchanged rather than the signals blocked, because a process started
meanwhile would inherit the blocking.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Literal, TypeAlias

import numpy as np

from metactl_ros.baselines import load_learned, ORACLE
from metactl_ros.errors import BundleError, ConfigError
from metactl_ros.motion.reference import Sinusoid
from metactl_ros.options import (
    ControllerOptions,
    defaults_of,
    option,
    options_of,
    PlantOptions,
)
from metactl_ros.settings import (
    faults_file,
    is_from_urdf,
    load_arm,
    load_plant,
    PlantSettings,
    require_files,
    Settings,
    share_directory,
    shipped_policy,
)
from metactl_ros.sim.task import draw_evaluation, Episode

END_WITHIN_S = 3.0
"""How long a process may take to end after SIGTERM."""
SHUTDOWN_ORDER = ('controller_node', 'plant_node', 'recorder')
"""The recorder last: it shall see how the others end."""
PAYLOAD_KG = 0.75
"""Of a simulated robot."""
MAX_DOMAIN_ID = 101
"""Above it the ports of DDS run into those Linux gives out by itself."""
Process: TypeAlias = 'subprocess.Popen[bytes]'


def dated_bag() -> Path:
    """Return where a bag goes that was given no folder."""
    return Path('runs/bags') / time.strftime('%Y%m%d_%H%M%S')


def bag_of(word: str) -> Path | None:
    """Return the folder that the launch argument `record` asks for."""
    if word.lower() in ('', 'false'):
        return None
    return dated_bag() if word.lower() == 'true' else Path(word)


@dataclass(frozen=True, kw_only=True)
class Setup(PlantOptions, ControllerOptions):
    """What is to run."""

    namespace: str = option('', 'of all nodes and topics', default_help='none')
    params_file: Path | None = option(
        None,
        'a YAML file of ROS parameters; the simulated episode, and options other than their '
        'defaults, overrule it',
        metavar='FILE',
    )
    record: Path | str | None = option(
        None,
        'record everything into a bag; the launch file also takes true, for runs/bags/DATE_TIME',
        metavar='BAG',
        launch_default='false',
        read=bag_of,
    )
    log_level: str = option('info', 'debug, info, warn or error')

    @property
    def robot_payload_kg(self) -> float:
        """What a simulated robot carries."""
        return PAYLOAD_KG if self.payload_kg is None else self.payload_kg

    def world(self) -> PlantSettings:
        """Return the world around the arm that is chosen."""
        return _world_of(self.arm_file)

    def episode(self) -> Episode:
        """Return the episode that plant and reference are set to."""
        task = self.world().task
        return draw_evaluation(task, self.seed, self.robot_payload_kg, 1, self.tau_z_s).of_arm(0)


@cache
def _world_of(arm_file: str) -> PlantSettings:
    """Return the world around an arm, kept: to search a workspace takes a second or two."""
    return load_plant(load_arm(arm_file))


def best_controller(settings: Settings) -> Literal['policy', 'momentum_observer']:
    """Return the best controller that drives an arm as it is, without tuning."""
    try:
        load_learned(shipped_policy(), settings.arm, settings.controller)
    except BundleError:  # it is for other arms
        return 'momentum_observer'
    return 'policy'


@dataclass(frozen=True, kw_only=True)
class LaunchRequest(Setup):
    """What is to run, for how long, and who may reach it: `metactl up` and the launch file."""

    duration_s: float = option(
        0.0, 'end after so many seconds; 0: never', name='duration', metavar='S'
    )
    loopback: bool = option(True, 'keep all traffic on this machine')


def parameters_of(setup: Setup) -> dict[str, dict[str, object]]:
    """Return the ROS parameters of each process, by module, in the order of starting.

    They overrule the parameter file, so only what was chosen is among them.

    Raises:
        ConfigError: If what was chosen does not go together.
    """
    chosen: dict[str, dict[str, object]] = {}
    if setup.record is not None:
        chosen['recorder'] = {'out': str(setup.record)}
    if setup.plant != 'none':
        chosen['plant_node'] = _plant_parameters(setup)
    elif setup.faults:
        raise ConfigError('faults: only a simulated robot has them; choose a plant, or none.')
    return {**chosen, 'controller_node': _controller_parameters(setup)}


def _plant_parameters(setup: Setup) -> dict[str, object]:
    if setup.joint_prefix:
        raise ConfigError(
            f'joint_prefix: the simulated robot has none, found {setup.joint_prefix!r}; give '
            'an arm_file with other joint names, or choose plant none.'
        )
    names = ('plant', 'tau_z_s', 'seed', 'lockstep')
    parameters: dict[str, object] = {name: getattr(setup, name) for name in names}
    parameters['payload_kg'] = setup.robot_payload_kg
    if setup.arm_file:
        parameters['arm_file'] = setup.arm_file
    if setup.faults:
        parameters['faults'] = str(faults_file(setup.faults).resolve())
        parameters['faults_start_s'] = setup.faults_start_s
    return parameters


def _controller_parameters(setup: Setup) -> dict[str, object]:
    usual = defaults_of('controller_node.yaml')
    given = {name: getattr(setup, name) for name in options_of(ControllerOptions)}
    is_open = {'autostart': setup.autostart is None, 'reference': not setup.reference}
    parameters: dict[str, object] = {
        name: value
        for name, value in given.items()
        if name != 'payload_kg' and not is_open.get(name, value == usual[name])
    }
    if setup.lockstep:
        parameters['use_sim_time'] = True
    if setup.plant != 'none':
        parameters |= _episode_parameters(setup)
    elif setup.payload_kg is not None:
        parameters['payload_kg'] = setup.payload_kg
    return parameters


def default_parameters(setup: Setup) -> dict[str, dict[str, object]]:
    """Return the ROS parameters, by module, that a parameter file may overrule.

    With a simulated robot control begins at once; a real one does not move without a request. An
    arm from a URDF gets gains that bear what lies between two processes in real time: with those
    tuned for a state that is never late, an observer loses the FR3 at 10 ms.
    """
    usual: dict[str, object] = {}
    if setup.plant != 'none':
        usual = {'autostart': True, 'reference': 'sinusoid'}
    if not setup.lockstep and is_from_urdf(setup.arm_file):
        usual['classical_file'] = str(share_directory() / 'config' / 'classical' / 'delayed.yaml')
    return {'controller_node': usual} if usual else {}


def _episode_parameters(setup: Setup) -> dict[str, object]:
    """Return the parameters that fit the controller to the episode of the simulated robot."""
    episode = setup.episode()
    assert isinstance(episode.reference, Sinusoid)
    knows_truth = setup.controller == ORACLE
    known_s = setup.world().task.tau_z_s
    if knows_truth and setup.tau_z_s != known_s:
        raise ConfigError(
            f'controller: the oracle knows the tau_z of config/plant.yaml, {known_s:g} s, found a '
            f'robot of {setup.tau_z_s:g} s; leave tau_z out, or use python -m training.evaluate.'
        )
    parameters: dict[str, object] = {
        'payload_kg': setup.robot_payload_kg
        if knows_truth
        else float(episode.payload_estimate_kg),
        'sinusoid.amplitude_rad': episode.reference.amplitude_rad.tolist(),
        'sinusoid.omega_radps': episode.reference.omega_radps.tolist(),
        'sinusoid.phase_rad': episode.reference.phase_rad.tolist(),
        'sinusoid.centre_rad': np.broadcast_to(
            episode.reference.centre_rad, episode.reference.phase_rad.shape
        ).tolist(),
    }
    if setup.lockstep:
        # The plant waits, and a busy machine may be slow: that must not change what is computed.
        parameters |= {'state_timeout_s': 10.0, 'inference_budget_s': 1.0}
    return parameters


def commands(setup: Setup) -> dict[str, list[str]]:
    """Return the command line of each process.

    Raises:
        ConfigError: If the set-up names a file which does not exist.
    """
    require_files(vars(setup))
    return {
        name: [sys.executable, '-m', f'metactl_ros.ros.{name}', *ros_arguments(setup, name)]
        for name in parameters_of(setup)
    }


def ros_arguments(setup: Setup, name: str) -> list[str]:
    """Return the arguments of a process behind --ros-args; of two values the later counts."""
    arguments = ['--ros-args', '--log-level', setup.log_level]
    if setup.namespace:
        arguments += ['-r', f'__ns:=/{setup.namespace.strip("/")}']
    arguments += _assignments(default_parameters(setup).get(name, {}))
    if setup.params_file is not None:
        arguments += ['--params-file', str(setup.params_file)]
    return arguments + _assignments(parameters_of(setup).get(name, {}))


def _assignments(values: Mapping[str, object]) -> list[str]:
    return [part for name, x in values.items() for part in ('-p', f'{name}:={json.dumps(x)}')]


def loopback_environment(domain_id: int | None) -> dict[str, str]:
    """Return the variables to start a node with, to be laid over `os.environ`.

    Args:
        domain_id: Nodes of different domains do not see each other, 0 to 101; None keeps what the
            environment says.

    Raises:
        ConfigError: If there is no such domain.
    """
    profile = str(share_directory() / 'config' / 'loopback.xml')
    environment = {
        'RMW_IMPLEMENTATION': 'rmw_fastrtps_cpp',
        'FASTRTPS_DEFAULT_PROFILES_FILE': profile,
        'FASTDDS_DEFAULT_PROFILES_FILE': profile,  # its name from Fast DDS 3 on
        'SKIP_DEFAULT_XML_FILE': '1',  # of the working directory
        'RMW_FASTRTPS_USE_QOS_FROM_XML': '0',
        'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET',  # any other adds sockets to the profile's
        'ROS_LOCALHOST_ONLY': '',
        'ROS_STATIC_PEERS': '',
        'ROS_DISCOVERY_SERVER': '',
    }
    if domain_id is not None:
        if not 0 <= domain_id <= MAX_DOMAIN_ID:
            raise ConfigError(
                f'domain_id: expected 0 to {MAX_DOMAIN_ID}, found {domain_id}; take another.'
            )
        environment['ROS_DOMAIN_ID'] = str(domain_id)
    return environment


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until the block is left, and then do what they do, once."""
    with _deferred(signal.SIGINT), _deferred(signal.SIGTERM):
        yield


@contextmanager
def _deferred(number: signal.Signals) -> Iterator[None]:
    has_come = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal has_come
        has_come = True

    usual = signal.signal(number, note)
    try:
        yield
    finally:
        signal.signal(number, usual)
        if has_come:
            signal.raise_signal(number)


class ProcessGroup:
    """Processes by name, each in a session of its own, that are stopped together.

    SIGINT and SIGTERM wait while a process is started or stopped, so that none is left behind.

    Args:
        environment: Added to the variables of this process; None: ROS stays on the loopback.
        log_folder: Where the output of a process goes, as NAME.log; None: to our own.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, log_folder: Path | None = None
    ) -> None:
        added = loopback_environment(None) if environment is None else environment
        self._environment, self._log_folder = {**os.environ, **added}, log_folder
        self._processes: dict[str, Process] = {}

    def __enter__(self) -> 'ProcessGroup':
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()

    def __contains__(self, name: str) -> bool:
        return name in self._processes

    def __getitem__(self, name: str) -> Process:
        return self._processes[name]

    def start(self, name: str, command: Sequence[str], *, has_input: bool = False) -> Process:
        """Start a process, with a pipe to its input if asked for."""
        folder = self._log_folder
        output = (folder / f'{name}.log').open('ab') if folder is not None else nullcontext()
        with output as log, deferred_signals():
            process = self._processes[name] = subprocess.Popen(
                command,
                env=self._environment,
                start_new_session=True,
                stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
                stdout=log,
                stderr=None if log is None else subprocess.STDOUT,
            )
        return process

    def start_busy(self, per_core: int = 1) -> None:
        """Start processes that compute nothing useful: so many for each core."""
        with deferred_signals():
            for _ in range(per_core * (os.cpu_count() or 1)):
                name = f'busy_{len(self._processes)}'
                self.start(name, [sys.executable, '-c', 'while True: pass'])

    def ended(self) -> dict[str, int]:
        """Return the exit codes of processes that ended by themselves, by name."""
        codes = {name: process.poll() for name, process in self._processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process and to all it has started, as when a machine pauses."""
        process = self._processes[name]
        with suppress(ProcessLookupError):
            if process.poll() is None:
                os.killpg(process.pid, number)

    def kill(self, name: str) -> None:
        """End a process with SIGKILL; it may then be started again."""
        with deferred_signals():
            process = self._processes.pop(name)
            process.kill()
            process.wait()

    def stop(self, name: str) -> int:
        """Ask a process to end, kill it after END_WITHIN_S, and return its exit code."""
        with deferred_signals():
            self.send_signal(name, signal.SIGCONT)  # SIGTERM waits while one is stopped
            process = self._processes.pop(name)
            process.terminate()
            try:
                process.wait(END_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
            if process.stdin is not None:
                process.stdin.close()
            return process.wait()

    def stop_all(self) -> dict[str, int]:
        """Stop every process, those of SHUTDOWN_ORDER last; return their exit codes, by name."""
        others = [name for name in self._processes if name not in SHUTDOWN_ORDER]
        last = [name for name in SHUTDOWN_ORDER if name in self._processes]
        with deferred_signals():
            return {name: self.stop(name) for name in (*others, *last)}


@contextmanager
def running(setup: Setup, environment: Mapping[str, str] | None = None) -> Iterator[ProcessGroup]:
    """Start the processes of a set-up; stop them when the block is left.

    Args:
        setup: What is to run.
        environment: As of a `ProcessGroup`.
    """
    lines = commands(setup)
    with ProcessGroup(environment) as group:
        for name, line in lines.items():
            group.start(name, line)
        yield group


def run_up(setup: Setup, duration_s: float, environment: Mapping[str, str] | None = None) -> int:
    """Run everything until Ctrl-C, SIGTERM, the end of the duration, or of any process.

    A duration of zero lasts for ever. The exit code is that of the process that ended by itself.
    Loopback only, unless an environment is given.
    """
    require_files(vars(setup))
    must_end = False

    def ask(*_: object) -> None:
        nonlocal must_end
        must_end = True

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, ask)
    until = time.monotonic() + duration_s if duration_s else float('inf')
    with running(setup, environment) as group:
        while not must_end and time.monotonic() < until:
            if codes := group.ended().values():
                return max(codes, key=abs)
            time.sleep(0.1)
    return 0
