# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from metactl_ros.nodes.parameters import CONTROLLER, defaults_of, PLANT
from metactl_ros.nodes.reference_page import page

DOCS = Path(__file__).resolve().parents[1] / 'docs' / 'topics_and_parameters.md'


def test_the_page_in_docs_is_what_the_nodes_declare():
    assert DOCS.read_text(encoding='utf-8') == page()


def test_every_parameter_has_one_default_and_every_default_a_meaning():
    assert list(defaults_of('controller_node.yaml')) == list(CONTROLLER)
    assert set(defaults_of('plant_node.yaml')) == set(PLANT)
