# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The networks that read a window: feature extractors for stable-baselines3's SAC.

    python -m training.learn.networks --counts --json runs/counts.json

    observation (W F,) -> rows (W, F) -> token map -> tokens (W, F) -> model -> summary (width,)
                       -> LayerNorm -> Linear -> ReLU -> 64 features -> SB3's heads [64, 64]

K heads of 16 make a width of d = 16 K, which the models without heads take for theirs.

    incrt             one pre-LN attention block, K from Phase 1, no feed-forward
    attention         the same block, K chosen freely
    attention_l2, _l3 two and three such blocks
    attention_l2_ffn  two blocks with a feed-forward of 2 d, any K
    transformer       the same with K = 4: the paper's baseline
    mlp               one hidden layer of d that sees the last row only
    gru_small, _large recurrent, as many parameters as incrt (K = 4, W = 20) and as transformer
    conv              causal dilated convolution with d channels

With --counts: all trainable and target parameters of a SAC policy with 8 actions, each model at
the paper's sizes or at K = 4, W = 20.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import difflib
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, Literal, TypeAlias

from gymnasium import spaces
import numpy as np
from rich.console import Console
from rich.table import Table
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.sac.policies import SACPolicy
import torch
from torch import nn
from torch.nn import functional

from metactl_ros.control.window import feature_names, token_map, Tokens
from metactl_ros.errors import ConfigError
from metactl_ros.files import write_json
from training.commands import command_parser
from training.learn import attention
from training.learn.attention import CausalBlock, CollapsedBlock, LastQueryBlock, TokenEmbedding
from training.records import PAPER_TABLE

Model: TypeAlias = Literal[
    'incrt',
    'transformer',
    'mlp',
    'gru_small',
    'gru_large',
    'conv',
    'attention',
    'attention_l2',
    'attention_l3',
    'attention_l2_ffn',
]

HEAD_WIDTH = 16
"""d_k, of the paper."""
FEATURES_DIM = 64
HEAD_LAYERS = (64, 64)
"""Hidden layers of actor and critics behind the features."""
ACTIONS_PER_JOINT = 4
"""Of the design: K_d, Lambda and two eta."""
TRANSFORMER_HEADS = 4
GRU_WIDTHS: dict[Model, int] = {'gru_small': 72, 'gru_large': 140}
DEPTHS: dict[Model, int] = {
    'attention_l2': 2,
    'attention_l3': 3,
    'attention_l2_ffn': 2,
    'transformer': 2,
}


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Which network, how large, and what it reads."""

    model: Model
    heads: int
    """K. `transformer` has four; the GRUs have a width of their own and do not read it."""
    window: int
    """W, rows."""
    num_joints: int = 2
    """n, of the arm; the paper's has two."""
    num_extra: int = 0
    """Features behind the paper's 4 n + 3."""
    tokens: Tokens = 'raw'

    def __post_init__(self) -> None:
        models = get_args(Model)
        if self.model not in models:
            near = difflib.get_close_matches(str(self.model), models, n=1)
            hint = f'did you mean {near[0]!r}?' if near else f'valid models are {sorted(models)}.'
            raise ConfigError(f'NetworkConfig.model: unknown model {self.model!r}; {hint}')
        if self.tokens not in get_args(Tokens):
            valid = ' or '.join(repr(name) for name in get_args(Tokens))
            raise ConfigError(f'NetworkConfig.tokens: expected {valid}, found {self.tokens!r}.')
        for name in ('heads', 'window', 'num_joints', 'num_extra'):
            value, least = getattr(self, name), int(name != 'num_extra')
            if not isinstance(value, int) or value < least:
                raise ConfigError(
                    f'NetworkConfig.{name}: expected a whole number of at least {least}, '
                    f'found {value!r}.'
                )
        if self.model == 'transformer' and self.heads != TRANSFORMER_HEADS:
            raise ConfigError(
                f'NetworkConfig.heads: transformer has {TRANSFORMER_HEADS} heads, found '
                f'{self.heads}; attention_l2_ffn is the same network with any number.'
            )

    @property
    def width(self) -> int:
        """Return d = K d_k."""
        return self.heads * HEAD_WIDTH

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of the F features of a row."""
        return feature_names(('',) * self.num_joints, self.num_extra)

    @property
    def num_features(self) -> int:
        """Return F."""
        return len(self.features)


class WindowExtractor(BaseFeaturesExtractor):
    """Flattened windows in, features out; a subclass says how tokens become one summary."""

    token_map: torch.Tensor

    def __init__(self, observation_space: spaces.Space[Any], config: NetworkConfig) -> None:
        expected = (config.window * config.num_features,)
        if observation_space.shape != expected:
            raise ConfigError(
                f'{type(self).__name__}: a window of {config.window} rows with '
                f'{config.num_features} features is an observation of shape {expected}, found '
                f'{observation_space.shape}; give env and network the same window.'
            )
        super().__init__(observation_space, FEATURES_DIM)
        self.config = config
        self._shape = (config.window, config.num_features)
        matrix = token_map(config.tokens, config.num_joints, config.num_extra)
        self.register_buffer('token_map', torch.tensor(matrix, dtype=torch.float32))

    def _end(self, width: int) -> None:
        self.final_norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, FEATURES_DIM)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the features, shape (B, 64), of observations, shape (B, W F)."""
        summary = self.summarise(self.to_tokens(observations))
        return functional.relu(self.project(self.final_norm(summary)))

    def to_tokens(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the tokens that the model sees, shape (B, W, F)."""
        rows = observations.reshape(-1, *self._shape)  # (B, W, F)
        return rows if self.config.tokens == 'raw' else rows @ self.token_map

    def summarise(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return one vector per window, shape (B, width)."""
        raise NotImplementedError


class ShallowAttention(WindowExtractor):
    """One attention block, collapsed: `incrt` and `attention`."""

    def __init__(self, observation_space: spaces.Space[Any], config: NetworkConfig) -> None:
        super().__init__(observation_space, config)
        self.embedding = TokenEmbedding(config.num_features, config.window, config.width)
        self.block = CollapsedBlock(config.width, config.heads)
        self._end(config.width)

    def summarise(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return h of the last token."""
        last: torch.Tensor = self.block(tokens, self.embedding)
        return last

    def attend(self, observations: torch.Tensor) -> attention.Heads:
        """Return what each head attends to and finds, for a monitor."""
        tokens = self.to_tokens(observations)
        return self.block.attend(tokens, self.embedding, self.embedding.last(tokens))


class DeepAttention(WindowExtractor):
    """Blocks in a row, of which the last has one query."""

    def __init__(self, observation_space: spaces.Space[Any], config: NetworkConfig) -> None:
        super().__init__(observation_space, config)
        self.embedding = TokenEmbedding(config.num_features, config.window, config.width)
        has_ffn = config.model in ('transformer', 'attention_l2_ffn')
        kinds = [*[CausalBlock] * (DEPTHS[config.model] - 1), LastQueryBlock]
        self.blocks = nn.Sequential(
            *(kind(config.width, config.heads, has_ffn=has_ffn) for kind in kinds)
        )
        self._end(config.width)

    def summarise(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return h of the last token."""
        last: torch.Tensor = self.blocks(self.embedding(tokens))
        return last


class Memoryless(WindowExtractor):
    """A hidden layer on the last row."""

    def __init__(self, observation_space: spaces.Space[Any], config: NetworkConfig) -> None:
        super().__init__(observation_space, config)
        self.hidden = nn.Linear(config.num_features, config.width)
        self._end(config.width)

    def summarise(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the hidden layer."""
        return functional.relu(self.hidden(tokens[:, -1]))


class Recurrent(WindowExtractor):
    """A GRU that starts from zero at the oldest row."""

    def __init__(self, observation_space: spaces.Space[Any], config: NetworkConfig) -> None:
        super().__init__(observation_space, config)
        width = GRU_WIDTHS[config.model]
        self.gru = nn.GRU(config.num_features, width, batch_first=True)
        self._end(width)

    def summarise(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the state after the last row."""
        states: torch.Tensor = self.gru(tokens)[0]  # (B, W, width)
        return states[:, -1]


class CausalConvolution(WindowExtractor):
    """Convolutions with kernel 2 and dilations 1, 2, 4, ... until the last output sees all rows.

    Only the last output is read. It needs every second output of the layer below, counted from
    the end, so each layer has stride 2 and is a Linear over pairs; missing rows are zero.
    """

    def __init__(self, observation_space: spaces.Space[Any], config: NetworkConfig) -> None:
        super().__init__(observation_space, config)
        num_layers = max(1, (config.window - 1).bit_length())
        sizes = [config.num_features, *[config.width] * num_layers]
        self.layers = nn.ModuleList(nn.Linear(2 * a, b) for a, b in pairwise(sizes))
        self._end(config.width)

    def summarise(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the channels of the last output."""
        outputs = tokens
        for layer in self.layers:
            even = functional.pad(outputs, (0, 0, outputs.shape[1] % 2, 0))  # older side
            batch, rows, channels = even.shape
            pairs = even.reshape(batch, rows // 2, 2 * channels)  # (B, rows / 2, 2 channels)
            outputs = functional.relu(layer(pairs))
        return outputs[:, 0]


EXTRACTORS: dict[Model, type[WindowExtractor]] = {
    'incrt': ShallowAttention,
    'attention': ShallowAttention,
    'mlp': Memoryless,
    'conv': CausalConvolution,
    **dict.fromkeys(DEPTHS, DeepAttention),
    **dict.fromkeys(GRU_WIDTHS, Recurrent),
}


def make_policy_kwargs(config: NetworkConfig) -> dict[str, Any]:
    """Return the `policy_kwargs` with which SB3's SAC builds this network."""
    return {
        'features_extractor_class': EXTRACTORS[config.model],
        'features_extractor_kwargs': {'config': config},
        'net_arch': list(HEAD_LAYERS),
        'share_features_extractor': False,
    }


def build_policy(config: NetworkConfig, num_actions: int | None = None) -> SACPolicy:
    """Return a fresh SAC policy, as SB3's SAC would build it, without env or algorithm.

    Without a number of actions it has those of the design.
    """
    num_actions = num_actions or ACTIONS_PER_JOINT * config.num_joints
    return SACPolicy(
        spaces.Box(-np.inf, np.inf, (config.window * config.num_features,), np.float32),
        spaces.Box(-1.0, 1.0, (num_actions,), np.float32),
        lambda _: 3e-4,
        **make_policy_kwargs(config),
    )


def count_parameters(policy: SACPolicy) -> int:
    """Return the number of parameters of actor, critic and target critic, extractors included."""
    return sum(p.numel() for p in policy.parameters())


def table_of_counts() -> list[dict[str, Any]]:
    """Return the rows of the paper's main table, then every other model at K = 4, W = 20."""
    sizes: dict[tuple[Any, ...], int | None] = {
        place[1:]: row.thousand_parameters for place, row in PAPER_TABLE.items()
    }
    in_paper = {model for model, *_ in sizes}
    sizes |= {(model, 4, 20): None for model in EXTRACTORS if model not in in_paper}
    return [
        {
            **dict(zip(('model', 'heads', 'window'), size, strict=True)),
            'parameters': count_parameters(build_policy(NetworkConfig(*size))),
            'thousand_parameters_of_paper': printed,
        }
        for size, printed in sizes.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and write the table of counts."""
    parser = command_parser('learn.networks', __doc__)
    parser.add_argument('--counts', action='store_true', help='print the number of parameters')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write them as a list, too')
    args = parser.parse_args(arguments)
    if not args.counts:
        parser.error('nothing to do: pass --counts')
    rows = table_of_counts()
    table = Table(title='parameters of the SAC policy')
    for heading in ('model', 'K', 'W', 'parameters', 'paper'):
        table.add_column(heading, justify='left' if heading == 'model' else 'right')
    for model, heads, window, parameters, thousands in (row.values() for row in rows):
        paper = '' if thousands is None else f'{thousands}k'
        table.add_row(model, str(heads), str(window), f'{parameters:,}', paper)
    Console().print(table)
    if args.json:
        write_json(args.json, rows)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
