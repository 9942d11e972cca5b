# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""The names of what ~/shield carries, in order."""

SHIELD_NAMES = (
    'mode',
    'reason',
    'was_moved',
    'is_feasible',
    'distance',
    'excess',
    'excess_after_limits',
    'lyapunov_value',
    'state_is_fresh',
    'reference_is_valid',
    'policy_is_on_time',
    'error',
    'reset_requested',
    'payload_estimate_kg',
    'was_restarted',
    'num_states',
    'now_s',
    'late_ms',
    'inference_ms',
    'state_stamp_sec',
    'state_stamp_nanosec',
    'cause',
    'cause_joint',
    'was_resumed',
)
"""Then follow normal.NAME for each gain and constant: normal . theta + constant <= 0 was asked;
then, of a controller with an estimator, estimate.JOINT for each joint, N m.

distance is -1 where the proposal was replaced; mode is a `Mode`, error and cause are
a `Cause`, reason is a `Reason`; cause_joint counts from 0, -1 is none in
particular.
"""
