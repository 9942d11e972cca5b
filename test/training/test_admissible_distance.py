# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from support.situations import problems
import torch

from metactl_ros.control.shield import nearest
from training.learn.admissible_distance import distance_to_admissible, project


@pytest.fixture
def tensors():
    return [torch.tensor(array) for array in problems(2000, seed=20)]


def test_the_torch_projection_is_the_shields(tensors):
    arrays = [tensor.numpy() for tensor in tensors]
    expected, _, distance = nearest(*arrays)
    np.testing.assert_allclose(project(*tensors), expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(distance_to_admissible(*tensors), distance, rtol=0, atol=1e-10)


def test_a_scaled_normal_describes_the_same_set(tensors):
    proposal, normal, offset = tensors
    scaled = distance_to_admissible(proposal, 1e-6 * normal, 1e-6 * offset)
    np.testing.assert_allclose(scaled, distance_to_admissible(*tensors), rtol=0, atol=1e-9)


def test_the_gradient_is_that_of_the_shields_distance(tensors):
    proposal, normal, offset = (tensor[:200].clone() for tensor in tensors)
    proposal.requires_grad_()
    distance_to_admissible(proposal, normal, offset).sum().backward()
    point, h = proposal.detach().numpy(), 1e-6
    for entry in range(8):
        step = h * np.eye(8)[entry]
        above, below = (
            nearest(point + side * step, normal.numpy(), offset.numpy())[2] for side in (1, -1)
        )
        slope = (above - below) / (2 * h)
        np.testing.assert_allclose(proposal.grad[:, entry], slope, rtol=0, atol=1e-5)


def test_inside_the_set_distance_and_gradient_are_zero():
    inside = torch.zeros(1, 8, requires_grad=True)
    distance = distance_to_admissible(inside, torch.ones(1, 8), torch.ones(1))
    distance.sum().backward()
    assert distance.item() == 0.0
    assert torch.all(inside.grad == 0.0)


def test_an_empty_set_is_measured_to_the_corner_that_violates_it_least():
    action = torch.zeros(1, 8)
    distance = distance_to_admissible(action, torch.ones(1, 8), torch.full((1,), -9.0))
    assert distance.item() == pytest.approx(8.0**0.5)


def test_single_precision_does_not_leave_the_set(tensors):
    proposal, normal, offset = (tensor.float() for tensor in tensors)
    action = project(proposal, normal, offset)
    assert action.abs().max() <= 1.0
    assert ((normal * action).sum(-1) - offset).max() < 1e-5
