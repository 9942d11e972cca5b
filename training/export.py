# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Export the policy of a finished run as a bundle that a robot can load without torch.

    python -m training.export --run RUN --out NAME.metactl --result results/evaluation.json
    python -m training.export --run runs/adapt/seed1 --out adaptive.metactl
    python -m training.export --run runs/adapt/none --out config/bank.yaml

A run of training.adapt must be calibrated first (training.calibrate): rho and P are sealed, too.
The bundle states the settings of the run, not today's. It is written under another name, loaded
as a robot would load it, and then renamed: it is complete or absent.

The graph computes in float64 between float32 ends. In float32 the token map alone, which scales
small differences of joint positions by 20, costs up to 6e-5 of an action; in float64 onnxruntime
and torch agree to the last bit of a float32, on every machine, and a window takes 30 us more.
onnxruntime has no float64 GRU and GELU; these two are islands of float32.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
import copy
from dataclasses import replace
from importlib import metadata
import io
import json
import logging
from pathlib import Path
from typing import Any, NamedTuple
import warnings

import numpy as np
from rich.console import Console
import torch
from torch import nn
import yaml

from metactl_ros.config import stated
from metactl_ros.control.loop import ControlLoop
from metactl_ros.control.window import feature_names, Tokens
from metactl_ros.errors import BundleError
from metactl_ros.policy.bundle import Bundle, load_bundle, write_sealed
from metactl_ros.policy.card import write_card
from metactl_ros.policy.contract import (
    action_size,
    Contract,
    hash_of,
    SCHEMA_VERSION,
    token_scales,
)
from metactl_ros.policy.network import GOLDEN_TOLERANCE, INPUT, OnnxPolicy, OUTPUT, PolicyShape
from metactl_ros.settings import build_settings, load_settings, Settings
from metactl_ros.signals import Array
from metactl_ros.sim.rk4_arm import Rk4Arm
from metactl_ros.sim.rollout import run_episode, without_warmup
from metactl_ros.sim.task import draw_evaluation
from training.adaptive.finished import (
    adaptive_controller,
    BEST,
    PAYLOAD_MAX_KG,
    read_adapted,
)
from training.adaptive.policy import constant_bank, WindowPolicy
from training.adaptive.segments import Adaptive
from training.calibrate import CALIBRATION, certified_lyapunov
from training.commands import command_parser, refusing
from training.learn.attention import CausalBlock, FoldedAttention
from training.learn.checkpoint import load_network
from training.learn.networks import ShallowAttention
from training.learn.run import read_run, RunConfig, RunError

OPSET = 20
"""Of ONNX; the first with GELU."""
GOLDEN_SEED = 7
ROLLOUTS, ROLLOUT_STEPS = 4, 128
"""Per payload, of which there are the least and the largest."""
NUM_GOLDEN, NUM_RANDOM = 32, 8
"""Golden windows from rollouts, and golden windows of noise."""


class SingleGelu(nn.Module):
    """GELU in float32."""

    def __init__(self, gelu: nn.GELU) -> None:
        super().__init__()
        self.gelu = gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return float64 of float64."""
        result: torch.Tensor = self.gelu(x.float())
        return result.double()


class SingleGru(nn.Module):
    """A GRU in float32, exported as ONNX's operator of that name.

    torch would trace it as a loop: slowly, and control flow is refused in a bundle. ONNX wants the
    gates in the order (update, reset, new), torch has (reset, update, new).
    """

    kernels: torch.Tensor
    recurrent: torch.Tensor
    biases: torch.Tensor

    def __init__(self, gru: nn.GRU) -> None:
        super().__init__()
        self.gru = gru.float()
        gates = {
            name: torch.cat([weight.chunk(3)[gate] for gate in (1, 0, 2)])
            for name, weight in gru.state_dict().items()
        }
        biases = torch.cat([gates['bias_ih_l0'], gates['bias_hh_l0']])
        self.register_buffer('kernels', gates['weight_ih_l0'][np.newaxis])  # (1, 3 d, F)
        self.register_buffer('recurrent', gates['weight_hh_l0'][np.newaxis])  # (1, 3 d, d)
        self.register_buffer('biases', biases[np.newaxis])  # (1, 6 d)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor]:
        """Return the states, of which the last is used, as nn.GRU does."""
        single = tokens.float()
        if not torch.onnx.is_in_onnx_export():
            return (self.gru(single)[0].double(),)
        batch, rows, width = *single.shape[:2], self.gru.hidden_size
        _, last = torch.onnx.ops.symbolic_multi_out(
            'GRU',
            [single.transpose(0, 1), self.kernels, self.recurrent, self.biases],
            {'hidden_size': width, 'linear_before_reset': 1},
            dtypes=[torch.float32, torch.float32],
            shapes=[[rows, 1, batch, width], [1, batch, width]],
        )
        return (last.transpose(0, 1).double(),)


class StaticCausalBlock(nn.Module):
    """A `CausalBlock` whose mask is a constant.

    torch would export its attention as operators that compute shapes at run time; a bundle may
    have none.
    """

    mask: torch.Tensor

    def __init__(self, block: CausalBlock, num_rows: int) -> None:
        super().__init__()
        self.block = block
        later = torch.full((num_rows, num_rows), -torch.inf, dtype=torch.float64)
        self.register_buffer('mask', later.triu(1))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Return h of the next layer, shape (B, W, d)."""
        query, key, value = self.block.split(h)  # (B, K, W, d_k) each
        scores = query @ (key * self.block.attention.head_dim**-0.5).mT  # (B, K, W, W)
        outputs = ((scores + self.mask).softmax(-1) @ value).transpose(1, 2).flatten(2)
        return self.block.feed_forward(h + self.block.attention.out_proj(outputs))


class ExportedNetwork(nn.Module):
    """A policy with float32 at both ends."""

    def act(self, window: Array) -> Array:
        """Return the actions of NumPy windows, shape (..., W, F), computed by torch."""
        rows = torch.as_tensor(window.reshape(-1, *window.shape[-2:]), dtype=torch.float32)
        with torch.no_grad():
            actions: Array = self(rows).numpy().astype(np.float64)
        return actions.reshape(*window.shape[:-2], -1)


class ExportedActor(ExportedNetwork):
    """The deterministic actor: windows (B, W, F) to actions (B, m)."""

    def __init__(self, actor: Any) -> None:
        super().__init__()
        exact = copy.deepcopy(actor).double()
        for parent in list(exact.modules()):
            for name, child in parent.named_children():
                if isinstance(child, nn.GELU):
                    setattr(parent, name, SingleGelu(child))
                elif isinstance(child, nn.GRU):
                    setattr(parent, name, SingleGru(child))
                elif isinstance(child, CausalBlock):
                    num_rows = exact.features_extractor.config.window
                    setattr(parent, name, StaticCausalBlock(child, num_rows))
        self.extractor = exact.features_extractor
        if isinstance(self.extractor, ShallowAttention):
            self.extractor = FoldedAttention(self.extractor)
        self.heads = nn.Sequential(exact.latent_pi, exact.mu, nn.Tanh())
        self.eval()

    def forward(self, window: torch.Tensor) -> torch.Tensor:
        """Return the actions."""
        action: torch.Tensor = self.heads(self.extractor(window.double()))
        return action.float()


def to_onnx(network: ExportedNetwork, num_rows: int, num_features: int) -> bytes:
    """Return the network as an ONNX file with a free batch; the same network, the same bytes."""
    with _quiet():
        program = torch.onnx.export(
            network,
            (torch.zeros(2, num_rows, num_features),),
            input_names=[INPUT],
            output_names=[OUTPUT],
            opset_version=OPSET,
            dynamic_shapes={INPUT: {0: torch.export.Dim('batch')}},
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    graph = model.graph
    # torch notes in every node where its code stands on this machine.
    for part in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        part.ClearField('metadata_props')
        part.ClearField('doc_string')
    graph.ClearField('value_info')
    for part in (*graph.node, *model.opset_import):
        part.ClearField('domain')  # says in words what its absence says
    return bytes(model.SerializeToString(deterministic=True))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch says of itself: of its own deprecated calls, and of constants."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            message = r'`isinstance\(treespec, LeafSpec\)` is deprecated'
            warnings.filterwarnings('ignore', message, FutureWarning)
            yield
    finally:
        logging.disable(before)


class ExportedSchedule(ExportedNetwork):
    """The network of an adaptive law: windows (B, W, F) to actions (B, m)."""

    def __init__(self, law: Adaptive, num_joints: int) -> None:
        super().__init__()
        self.exact = WindowPolicy(copy.deepcopy(law), num_joints).double()
        self.eval()

    def forward(self, window: torch.Tensor) -> torch.Tensor:
        """Return the actions."""
        action: torch.Tensor = self.exact(window.double())
        return action.float()


class TrainedRun(NamedTuple):
    """What a finished run has left."""

    settings: Settings
    """Of the training, with the window of the network."""
    network: ExportedNetwork
    tokens: Tokens
    tau_z_s: float
    """Of the rollouts that golden windows are taken from."""
    record: dict[str, Any]
    """For the contract: run, plant, command, versions."""


def read_trained(folder: Path) -> TrainedRun:
    """Return a finished run."""
    config = read_run(folder)
    actor: Any = load_network(folder).actor
    content = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
    num_extra = actor.features_extractor.config.num_extra
    try:
        content['settings']['controller']['context'] |= {
            'num_rows': config.window,
            'num_extra': num_extra,
        }
        record = {
            'run': content['run'],
            'plant': content['settings']['plant'],
            'command': [without_folders(word) for word in content['command']],
            'versions': content['versions'],
        }
    except (KeyError, TypeError) as error:
        raise RunError(f'{folder}/config.json: lacks {error}; train it again.') from None
    settings = build_settings(content['settings'], f'{folder}/config.json')
    network, tokens = ExportedActor(actor), config.hyper.tokens
    return TrainedRun(settings, network, tokens, config.tau_z, record | _exported_with())


def _exported_with() -> dict[str, Any]:
    names = ('torch', 'onnxscript', 'onnxruntime')
    return {'exported_with': {name: metadata.version(name) for name in names}}


def read_adaptive(folder: Path) -> TrainedRun:
    """Return a finished and calibrated run of training.adapt, for the shipped arm."""
    trained, settings = read_adapted(folder), load_settings()
    path = folder / CALIBRATION
    try:
        found = json.loads(path.read_text(encoding='utf-8'))
        lyapunov = certified_lyapunov(settings.controller.lyapunov, found)
    except (OSError, ValueError, KeyError) as error:
        raise RunError(
            f'{path}: cannot be read ({error}); calibrate the run first: python -m '
            f'training.calibrate --run {folder}'
        ) from None
    controller = adaptive_controller(settings.controller, trained)
    settings = replace(settings, controller=replace(controller, lyapunov=lyapunov))
    tau_z = next(row for row in found['regimes'] if row['regime'] == 'tau_2')
    record = {
        **trained.record,
        'command': [without_folders(word) for word in trained.record['command']],
        'certified': {
            'error_radius_mrad': 1e3 * found['fitted']['error_radius_rad'],
            'coverage_asked': found['coverage_asked'],
            'coverage_tau_2': tau_z['coverage'],
        },
    }
    network = ExportedSchedule(trained.law, controller.num_joints)
    return TrainedRun(
        settings, network, 'raw', settings.plant.task.tau_z_s, record | _exported_with()
    )


def without_folders(word: str) -> str:
    """Return a word of a command line without the folders of a path outside the checkout."""
    option, equals, value = word.rpartition('=')
    is_outside = value.startswith(('/', '~', '..'))
    return f'{option}{equals}{Path(value).name}' if is_outside else word


def read_results(path: Path, run: RunConfig) -> list[dict[str, Any]]:
    """Return the records of training.evaluate that are of this run."""
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise RunError(
            f'{path}: cannot be read ({error}); give a file of training.evaluate.'
        ) from None
    keys = ('model', 'heads', 'window', 'preset', 'steps', 'seed')
    wanted = {key: getattr(run, key) for key in keys}
    records = content if isinstance(content, list) else [content]
    own = [record for record in records if wanted.items() <= record.items()]
    if not own:
        raise RunError(f'{path}: has no record of {wanted}; evaluate the run with --json {path}')
    return own


def record_windows(trained: TrainedRun) -> Array:
    """Return what the policy sees in closed loop on the RK4 plant, shape (N, W, F), float32."""
    settings, seen = trained.settings, list[Array]()
    loop = ControlLoop(settings.arm, without_warmup(settings.controller))
    plant = Rk4Arm(settings.two_link, settings.plant.friction, settings.controller.law.rate_hz)

    def policy(window: Array) -> Array:
        seen.append(window.astype(np.float32))
        return trained.network.act(window)

    task = settings.plant.task
    for payload in (min(task.payload_levels_kg), max(task.payload_levels_kg)):
        episodes = draw_evaluation(task, GOLDEN_SEED, payload, ROLLOUTS, trained.tau_z_s)
        run_episode(plant, episodes, policy, loop, ROLLOUT_STEPS)
    return np.concatenate(seen)


def export_bundle(
    run: Path, out: Path, result: Path | None = None, *, may_replace: bool = False
) -> Bundle:
    """Write the bundle of a run and return it, loaded with the settings of its training."""
    if out.suffix != '.metactl':
        raise BundleError(f'{out}: expected a name that ends in .metactl.')
    torch.set_num_threads(1)
    is_adaptive = (run / BEST).is_file()
    trained = read_adaptive(run) if is_adaptive else read_trained(run)
    results = read_results(result, read_run(run)) if result else []
    arm, controller = trained.settings.two_link, trained.settings.controller
    features = feature_names(arm.joint_names, controller.context.num_extra)
    contract = Contract(
        schema_version=SCHEMA_VERSION,
        arm=arm,
        arm_sha256=hash_of(arm),
        law=controller.law,
        gain_box=controller.gain_box,
        lyapunov=controller.lyapunov,
        context=controller.context,
        features=features,
        tokens=token_scales(trained.tokens),
        training=trained.record,
        estimator=controller.estimator,
    )
    windows = record_windows(trained)
    model = to_onnx(trained.network, *windows.shape[1:])
    num_actions = action_size(contract)
    policy = OnnxPolicy(model, PolicyShape(windows.shape[-2], len(features), num_actions))
    agreement = float(np.abs(policy(windows) - trained.network.act(windows)).max())
    if not agreement <= GOLDEN_TOLERANCE:
        raise BundleError(
            f'{run}: onnxruntime and torch differ by {agreement:.3g} on rollouts, expected at '
            f'most {GOLDEN_TOLERANCE}; this network cannot be exported faithfully.'
        )
    chosen = windows[np.linspace(0, len(windows) - 1, NUM_GOLDEN).astype(int)]
    noise = np.random.default_rng(GOLDEN_SEED).standard_normal((NUM_RANDOM, *windows.shape[1:]))
    golden = np.concatenate([chosen, noise.astype(np.float32)])
    arrays = io.BytesIO()
    contents: dict[str, Any] = {INPUT: golden, OUTPUT: trained.network.act(golden)}
    np.savez(arrays, **contents)
    card = write_card(out.name, contract, num_actions, results, agreement, len(windows))
    table = stated(contract)
    files = {
        'card.md': card.encode(),
        'contract.json': (json.dumps(table, indent=2, allow_nan=False) + '\n').encode(),
        'golden.npz': arrays.getvalue(),
        'policy.onnx': model,
    }
    return write_sealed(
        out, files, lambda path: load_bundle(path, arm, controller), may_replace=may_replace
    )


def export_bank(run: Path, out: Path) -> None:
    """Write the bank of a run without a network as YAML, for training.tune."""
    trained = read_adapted(run)
    if trained.config.shape.kind != 'none':
        raise RunError(
            f'{run}: has a network, which a bank with constant gains has not; export it as '
            'NAME.metactl, or give a run of training.adapt --kind none.'
        )
    rounded = {
        key: [float(f'{x:.4g}') for x in value] if isinstance(value, tuple) else value
        for key, value in stated(constant_bank(trained.law, PAYLOAD_MAX_KG)).items()
    }
    table = {
        key: float(f'{value:.4g}') if isinstance(value, float) else value
        for key, value in rounded.items()
    }
    head = '# The observer bank with a constant schedule: python -m training.adapt --kind none\n'
    text = yaml.safe_dump(table, sort_keys=False, default_flow_style=None)
    out.write_text(head + text, encoding='utf-8')


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0 done, 2 wrong use."""
    parser = command_parser('export', __doc__)
    parser.add_argument(
        '--run', type=Path, required=True, help='a finished run (training.train, training.adapt)'
    )
    parser.add_argument('--out', type=Path, required=True, metavar='NAME.metactl|bank.yaml')
    parser.add_argument(
        '--result', type=Path, metavar='FILE', help='for the card: JSON of training.evaluate'
    )
    parser.add_argument('--force', action='store_true', help='replace a bundle of this name')
    args = parser.parse_args(arguments)
    console = Console(stderr=True)
    if args.out.suffix == '.yaml':
        export_bank(args.run, args.out)
        console.print(f'done: {args.out}', highlight=False)
        return 0
    bundle = export_bundle(args.run, args.out, args.result, may_replace=args.force)
    console.print(f'done: {args.out}, SHA-256 {bundle.sha256}', highlight=False, soft_wrap=True)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
