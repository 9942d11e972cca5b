# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Every command writes the JSON that it wrote when test/golden/verbs.json was made."""

from golden_package import rtol_for
from golden_values import FOLDER, json_differences, read_json, ROOT
from golden_verbs import FILE, say, VERBS
import pytest

pytestmark = pytest.mark.golden


@pytest.mark.filterwarnings('ignore::DeprecationWarning', 'ignore::FutureWarning')  # of exporters
@pytest.mark.parametrize('name', VERBS)
def test_a_command_says_what_it_said(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    about = read_json(FILE)
    kept, found = about['verbs'][name], say(name, tmp_path)
    assert list(json_differences(kept, found, rtol_for(about))) == []


def test_every_kept_command_is_still_asked():
    assert read_json(FILE)['verbs'].keys() == VERBS.keys()


def test_nothing_that_is_kept_knows_where_it_was_made():
    for file in FOLDER.rglob('*'):
        if file.is_file():
            content = file.read_bytes()
            assert str(ROOT).encode() not in content
            assert b'/tmp/' not in content
