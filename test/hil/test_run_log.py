# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What is read of a run: when faults really came, and which processes were lost."""

from support.made_runs import good_run

from metactl_ros.hil.run_log import lost_processes


def test_times_of_a_fault_are_those_at_which_it_really_came():
    log = good_run()
    assert (log.when(2.0), log.when(2.3), log.when(2.1)) == (2.02, 2.32, 2.1)


def test_a_process_is_lost_if_it_ended_before_its_time_or_with_an_error():
    codes = {'controller_node': -6, 'plant_node': 1, 'recorder': 0}
    run = {'gone': ['plant_node'], 'exit_codes': codes}
    assert lost_processes(run) == ('plant_node', 'controller_node (code -6)')
