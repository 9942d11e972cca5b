# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of modules in docs/architecture.md, from what each module says of itself.

python test/module_table.py
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / 'docs' / 'architecture.md'
BEGIN = '<!-- from here on written by python test/module_table.py; do not edit -->'
PACKAGES = ('metactl_ros', 'training')


def first_line(path):
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or '').partition('\n')[0]


def tables(root=ROOT):
    """Return the tables, one per folder: its own first line, and those of its modules."""
    lines = []
    for package in PACKAGES:
        for folder in sorted({path.parent for path in (root / package).rglob('*.py')}):
            modules = [path for path in sorted(folder.glob('*.py')) if path.stem != '__init__']
            lines += ['', f'### `{folder.relative_to(root)}/`', '']
            lines += [first_line(folder / '__init__.py'), '']
            lines += ['| module | what it holds |', '|---|---|']
            lines += [f'| `{path.name}` | {first_line(path)} |' for path in modules]
    return '\n'.join(lines) + '\n'


def page():
    """Return the page with its tables as they should be; what comes before is kept."""
    return PAGE.read_text().partition(BEGIN)[0] + BEGIN + '\n' + tables()


if __name__ == '__main__':
    PAGE.write_text(page())
