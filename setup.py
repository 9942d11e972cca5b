# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""Installs the package with pip or colcon; `training` and `test` stay in the checkout."""

from collections import defaultdict
from pathlib import Path

from setuptools import find_packages, setup

NAME = 'metactl_ros'

# Lower bounds are versions that were installed together and tried, each extra with the core.
CORE = [
    'numpy>=1.26.4',
    'onnxruntime>=1.20.0',
    'PyYAML>=6.0.1',
]
EXTRAS = {
    'ros': [
        'mcap>=1.5.0',
        'ros-jazzy-diagnostic-msgs>=5.3.6',
        'ros-jazzy-lifecycle-msgs>=2.0.3',
        'ros-jazzy-rclpy>=7.1.6',
        'ros-jazzy-rmw-fastrtps-cpp>=8.4.3',
        'ros-jazzy-sensor-msgs>=5.3.6',
        'ros-jazzy-std-msgs>=5.3.6',
        'ros-jazzy-std-srvs>=5.3.6',
        'ros-jazzy-trajectory-msgs>=5.3.6',
    ],
    'sim': [
        'matplotlib>=3.10.7',  # older ones warn about pyparsing
        'mcap>=1.5.0',
        'pybullet>=3.2.6; python_version < "3.12"',  # no wheels from there on
        'rich>=13.7.1',
        'rosbags>=0.11.0',
    ],
    'urdf': [
        'pin>=4.1.0',  # Pinocchio; needs numpy >= 2
    ],
    'train': [
        'gymnasium>=1.1.0',
        'matplotlib>=3.10.7',  # older ones warn about pyparsing
        'onnx>=1.18.0',
        'onnxscript>=0.6.0',  # older ones lack the interface torch.onnx.export asks for
        'rich>=13.7.1',
        'scipy>=1.15.0',  # the first whose quasi-random sequences take a generator
        'stable-baselines3>=2.7.0',
        'tensorboard>=2.17.0',
        'torch==2.13.0',  # exact: the trained weights and the exported graph depend on it
        'tqdm>=4.66.0',
    ],
    'sweep': [
        'ray>=2.48.0',
    ],
    'dev': [
        'colcon-core>=0.18.4',
        'colcon-ros>=0.5.0',
        'hypothesis>=6.100.0',
        'mcap-ros2-support>=0.5.7',  # writes bags that are none of ours
        'mypy>=2.4.1,<2.5',  # a new minor version finds new errors
        'psutil>=5.9.8',
        'pytest>=8.2.0',
        'pytest-cov>=5.0.0',
        'pytest-timeout>=2.3.1',
        'pytest-xdist>=3.6.1',
        'quadprog>=0.1.12',  # the reference the shield's projection is held against
        'ruff>=0.17.4,<0.18',  # a new minor version formats differently
        'scipy>=1.15.0',  # the first whose quasi-random sequences take a generator
        'setuptools>=70.1.0',  # builds the wheel in the tests; Python 3.12 brings none
        'types-psutil>=7.0.0.20250601',
        'types-PyYAML>=6.0.12.20250915',
    ],
}


def shared_files() -> list[tuple[str, list[str]]]:
    """Return what goes under share/: the ament index marker, the manifest, config and launch."""
    share = Path('share') / NAME
    files = defaultdict(list)
    files[Path('share/ament_index/resource_index/packages')].append(Path('resource') / NAME)
    files[share].append(Path('package.xml'))
    shipped = (path for path in Path('config').rglob('*') if path.is_file())
    for path in sorted([*shipped, *Path('launch').glob('*.launch.py')]):
        files[share / path.parent].append(path)
    return [(str(folder), [str(path) for path in paths]) for folder, paths in files.items()]


setup(
    name=NAME,
    version='0.1.0',
    description=(
        'An attention-based, Lyapunov-shielded gain scheduler for computed-torque control of '
        'robot arms whose friction has memory'
    ),
    maintainer='The metactl_ros authors',
    maintainer_email='maintainers@users.noreply.a-seed-451af049.example',
    license='Apache-2.0',
    python_requires='>=3.11',
    packages=find_packages(include=[NAME, f'{NAME}.*']),
    data_files=shared_files(),
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={
        'console_scripts': [
            'metactl = metactl_ros.cli:main',
            'metactl_controller = metactl_ros.ros.controller_node:main',
            'metactl_plant = metactl_ros.ros.plant_node:main',
            'metactl_recorder = metactl_ros.ros.recorder:main',
        ]
    },
    zip_safe=False,
)
