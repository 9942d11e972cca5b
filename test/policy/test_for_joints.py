# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The network of the shipped bundle, for other numbers of joints."""

import numpy as np
import pytest

from metactl_ros.policy.bundle import read_sealed
from metactl_ros.policy.contract import action_size, parse_contract
from metactl_ros.policy.for_joints import head, like_action, like_windows, network_for
from metactl_ros.policy.network import OnnxPolicy, PolicyShape, read_golden
from metactl_ros.policy.onnx_file import MisfitError
from metactl_ros.policy.onnx_graph import check_graph
from metactl_ros.settings import policy_file, shipped_policy

TWO = 2


@pytest.fixture(scope='module')
def shipped():
    """Return contract, graph, shape and golden windows of the shipped bundle."""
    path = shipped_policy()
    files = read_sealed(path)
    contract = parse_contract(path, files['contract.json'])
    shape = PolicyShape(contract.context.num_rows, len(contract.features), action_size(contract))
    return contract, files['policy.onnx'], shape, read_golden(files['golden.npz'], shape)[0]


def policy_for(shipped, num_joints):
    contract, model, shape, _ = shipped
    num_delays = contract.estimator.bank.num_delays
    data = network_for(model, TWO, num_joints, num_delays)
    check_graph(shipped_policy(), data)
    size = (shape.num_features - head(TWO)) // TWO
    per_joint = (shape.num_actions - num_delays - 1) // TWO
    sizes = head(num_joints) + num_joints * size, num_joints * per_joint + num_delays + 1
    return OnnxPolicy(data, PolicyShape(shape.num_rows, *sizes))


def test_for_as_many_joints_it_is_the_same_file(shipped):
    contract, model, _, _ = shipped
    assert network_for(model, TWO, TWO, contract.estimator.bank.num_delays) == model


@pytest.mark.parametrize('num_joints', [1, 3, 6, 7])
def test_joints_that_see_the_same_do_what_those_of_the_first_arm_do(shipped, num_joints):
    contract, model, shape, golden = shipped
    before, after = like_windows(golden, TWO, num_joints)
    expected = like_action(
        OnnxPolicy(model, shape)(before), TWO, num_joints, contract.estimator.bank.num_delays
    )
    np.testing.assert_allclose(policy_for(shipped, num_joints)(after), expected, atol=1e-7)


def test_the_order_of_joints_is_theirs_in_the_action(shipped):
    policy, rng = policy_for(shipped, 3), np.random.default_rng(5)
    tokens = rng.normal(size=(4, shipped[2].num_rows, 3, (shipped[2].num_features - head(2)) // 2))
    order = [2, 0, 1]

    def act(tokens):
        paper = np.zeros((*tokens.shape[:2], head(3)))
        return policy(np.concatenate((paper, tokens.reshape(*tokens.shape[:2], -1)), axis=-1))

    straight, turned = act(tokens), act(tokens[:, :, order])
    gains = straight[:, :12].reshape(4, 4, 3)
    assert np.ptp(gains[:, 0], axis=-1).min() > 1e-3
    np.testing.assert_allclose(turned[:, :12].reshape(4, 4, 3), gains[..., order], atol=1e-6)
    bank, other = (action[:, 17:-1].reshape(4, 3, 9) for action in (straight, turned))
    np.testing.assert_allclose(other, bank[:, order], atol=1e-6)
    np.testing.assert_allclose(turned[:, 12:17], straight[:, 12:17], atol=1e-6)


@pytest.mark.parametrize('num_joints', [2, 7])
def test_it_equals_the_network_in_torch(num_joints):
    """Weights at random, exported for two joints, rewritten, against torch made for n joints."""
    torch = pytest.importorskip('torch', reason="needs torch: pip install 'metactl_ros[train]'")
    from training.adaptive.bank import NUM_DELAYS
    from training.adaptive.network import NUM_STATIC, NUM_TOKEN, Shape
    from training.adaptive.policy import policy_of
    from training.adaptive.segments import Adaptive
    from training.export import ExportedSchedule, to_onnx

    torch.manual_seed(3)
    law = Adaptive(Shape())
    with torch.no_grad():
        for weight in law.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    size = NUM_TOKEN + NUM_STATIC
    model = to_onnx(ExportedSchedule(law, TWO), Shape().window, head(TWO) + TWO * size)
    data = network_for(model, TWO, num_joints, NUM_DELAYS)
    check_graph(shipped_policy(), data)
    num_features = head(num_joints) + num_joints * size
    window = np.random.default_rng(1).normal(size=(6, Shape().window, num_features))
    window = window.astype(np.float32).astype(np.float64)
    expected = policy_of(law, num_joints)(window)
    assert np.ptp(expected, axis=0).max() > 0.1
    policy = OnnxPolicy(data, PolicyShape(Shape().window, num_features, expected.shape[-1]))
    np.testing.assert_allclose(policy(window), expected, atol=2e-7)


def test_another_network_is_refused():
    model = read_sealed(policy_file('paper_sac'))['policy.onnx']
    with pytest.raises(MisfitError, match=r"no constant 'exact\.mean', with which joints meet"):
        network_for(model, 2, 7, 5)
