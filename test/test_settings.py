# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
import subprocess

import pytest

from metactl_ros.settings import code_of_checkout, code_version


@pytest.fixture
def checkout(tmp_path):
    """A checkout with one commit, and a function that runs git in it."""

    def git(*arguments):
        identity = ['-c', 'user.name=nobody', '-c', 'user.email=nobody@example.invalid']
        command = ['git', '-C', tmp_path, *identity, *arguments]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        return done.stdout.strip()

    for name in ('metactl_ros', 'training', 'config', 'results'):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'file').write_text('as committed')
    git('init', '--quiet')
    git('add', '--all')
    git('commit', '--quiet', '--message', 'all')
    return tmp_path, git('rev-parse', '--short=12', 'HEAD')


def test_a_result_names_the_commit_it_was_made_with(checkout):
    folder, commit = checkout
    (folder / 'results' / 'file').write_text('newer')
    assert code_version(folder) == commit


@pytest.mark.parametrize('name', ['metactl_ros/file', 'training/new', 'config/file'])
def test_sources_that_differ_from_the_commit_are_marked(checkout, name):
    folder, commit = checkout
    (folder / name).write_text('changed')
    assert code_version(folder) == f'{commit}+'


def test_this_code_names_the_commit_of_this_checkout():
    assert code_of_checkout() == code_version(Path(__file__).parents[1])


def test_code_within_the_checkout_of_something_else_has_no_commit(checkout):
    folder, _ = checkout
    assert code_version(folder / 'metactl_ros') is None


def test_code_outside_of_a_checkout_has_no_commit(tmp_path):
    assert code_version(tmp_path) is None


def test_where_there_is_no_git_there_is_no_commit(checkout, monkeypatch):
    folder, _ = checkout
    monkeypatch.setenv('PATH', '')
    assert code_version(folder) is None
