# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What a user gets who installs the package with colcon or pip."""

from email import message_from_bytes
import os
from pathlib import Path
import shlex
import shutil
import subprocess
import sys
from xml.etree import ElementTree
import zipfile

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[1]


def run(*command, cwd, **environment):
    """Run a command and return its output; what it says is the failure text."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith('PYTHON')}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean | {key: str(value) for key, value in environment.items()},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.fail(f'{shlex.join(done.args)}\n{done.stdout}\n{done.stderr}', pytrace=False)
    return done.stdout.strip()


def listed_files():
    """Return the files a commit of everything would hold, relative to the checkout."""
    listing = subprocess.run(
        ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    if listing.returncode == 0:
        return [name for name in listing.stdout.split('\0') if name]
    skip = {'.venv', 'build', 'install', 'log', 'runs', '__pycache__'}
    found = (path.relative_to(CHECKOUT) for path in CHECKOUT.rglob('*') if path.is_file())
    return [str(path) for path in found if not skip.intersection(path.parts)]


@pytest.fixture(scope='module')
def source(tmp_path_factory):
    """A copy of the sources, so that building leaves no trace in the checkout."""
    copy = tmp_path_factory.mktemp('workspace') / 'metactl_ros'
    for name in listed_files():
        if (CHECKOUT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, copy / name)
    return copy


@pytest.fixture(scope='module')
def prefix(source):
    """The folder colcon installed the package into."""
    workspace = source.parent
    run(
        *(sys.executable, '-m', 'colcon', '--log-base', 'log', 'build'),
        *('--merge-install', '--paths', source),
        cwd=workspace,
        COLCON_HOME=workspace / 'colcon_home',
    )
    return workspace / 'install'


@pytest.fixture(scope='module')
def site_packages(prefix):
    (folder,) = prefix.glob('lib/python3*/*-packages')  # Debian says dist-packages
    return folder


@pytest.fixture(scope='module')
def wheel(source, tmp_path_factory):
    """The wheel pip builds, with the setuptools that is installed."""
    folder = tmp_path_factory.mktemp('wheel')
    run(
        *(sys.executable, '-m', 'pip', 'wheel', '--no-index', '--no-deps', '--no-build-isolation'),
        *('--wheel-dir', folder, source),
        cwd=folder,
    )
    (path,) = folder.glob('*.whl')
    return path


@pytest.fixture(scope='module')
def wheel_files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_colcon_installs_the_command_where_ros2_run_looks_for_it(prefix):
    assert os.access(prefix / 'lib/metactl_ros/metactl', os.X_OK)


def test_colcon_marks_the_package_in_the_ament_index(prefix):
    assert (prefix / 'share/ament_index/resource_index/packages/metactl_ros').is_file()


def test_colcon_installs_every_config_and_launch_file(prefix, source):
    wanted = {
        str(path.relative_to(source))
        for folder in ('config', 'launch')
        for path in (source / folder).rglob('*')
        if path.is_file()
    }
    assert {'config/arm.yaml', 'config/arm.urdf', 'launch/view_arm.launch.py'} <= wanted
    share = prefix / 'share/metactl_ros'
    assert not {name for name in wanted | {'package.xml'} if not (share / name).is_file()}


def test_the_installed_package_reads_its_own_config(prefix, site_packages, tmp_path):
    code = (
        'from metactl_ros import settings; settings.load_settings(); '
        'import sys; sys.stdout.write(str(settings.share_directory()))'
    )
    found = run(sys.executable, '-c', code, cwd=tmp_path, PYTHONPATH=site_packages)
    assert Path(found) == (prefix / 'share/metactl_ros').resolve()


def test_the_installed_command_answers(prefix, site_packages, tmp_path):
    command = prefix / 'lib/metactl_ros/metactl'
    assert 'demo' in run(command, '--help', cwd=tmp_path, PYTHONPATH=site_packages)


def test_colcon_installs_one_package_and_neither_training_nor_tests(site_packages):
    names = {path.name for path in site_packages.iterdir()}
    assert {name for name in names if not name.endswith('.egg-info')} == {'metactl_ros'}


def test_the_wheel_holds_one_package_and_neither_training_nor_tests(wheel_files):
    tops = {name.split('/')[0] for name in wheel_files}
    assert {top for top in tops if not top.endswith(('.dist-info', '.data'))} == {'metactl_ros'}


def test_the_wheel_holds_the_same_modules_as_the_checkout(wheel_files, source):
    modules = {str(path.relative_to(source)) for path in source.glob('metactl_ros/**/*.py')}
    installed = {name for name in wheel_files if name.startswith('metactl_ros/')}
    assert installed == modules


@pytest.mark.parametrize('field', ['name', 'version', 'license', 'maintainer'])
def test_setup_py_and_package_xml_agree(wheel, source, field):
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith('.dist-info/METADATA'))
        metadata = message_from_bytes(archive.read(path))
    assert metadata[field] == ElementTree.parse(source / 'package.xml').findtext(field)


def test_setup_py_and_package_xml_give_one_address_of_a_form_that_exists(wheel, source):
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith('.dist-info/METADATA'))
        metadata = message_from_bytes(archive.read(path))
    address = ElementTree.parse(source / 'package.xml').find('maintainer').get('email')
    assert metadata['maintainer-email'] == address
    assert not address.endswith('.invalid')


def test_the_citation_is_of_this_version_and_licence(source):
    citation = yaml.safe_load((source / 'CITATION.cff').read_text())
    package = ElementTree.parse(source / 'package.xml')
    assert {'cff-version', 'message', 'title', 'authors'} <= set(citation)
    for field in ('version', 'license'):
        assert citation[field] == package.findtext(field)
    assert citation['title'] == package.findtext('name')
    assert citation['authors'] == [{'name': package.findtext('maintainer')}]
