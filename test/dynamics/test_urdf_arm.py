# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What of an arm file and its URDF is refused, and that the error says why; needs no Pinocchio."""

from dataclasses import replace

import pytest
from support import urdf_arms
from support.urdf_arms import checked, TWO_LINK

from metactl_ros.arm_file import read_arm_file
from metactl_ros.dynamics.urdf_arm import check_arm, LockedJoint
from metactl_ros.errors import ConfigError

FR3, UR5E = checked('fr3').file, checked('ur5e').file
FR3_URDF, UR5E_URDF = urdf_arms.urdf_text('fr3'), urdf_arms.urdf_text('ur5e')
J7_LIMIT = '<limit lower="-3.0159" upper="3.0159" effort="12.0" velocity="5.26"/>'
MIMIC = f'{J7_LIMIT}<mimic joint="fr3_joint6"/>'


def seventh(kind):
    return FR3_URDF.replace('"fr3_joint7" type="revolute"', f'"fr3_joint7" type="{kind}"')


def massless(link):
    start = FR3_URDF.index('<inertial>', FR3_URDF.index(f'<link name="{link}">'))
    end = FR3_URDF.index('</inertial>', start) + len('</inertial>')
    return FR3_URDF[:start] + FR3_URDF[end:]


URDFS = {
    'continuous': (seventh('continuous'), r'fr3_joint7: .*continuous.*limits\.position_rad'),
    'prismatic': (seventh('prismatic'), r'fr3_joint7: .*prismatic.*state its position in locked'),
    'floating': (seventh('floating'), r"fr3_joint7'?: .*types .*found 'floating'"),
    'fixed': (seventh('fixed'), r"joints: expected a joint that moves .*'fr3_joint7'; did you"),
    'mimic': (
        FR3_URDF.replace(J7_LIMIT, MIMIC),
        r"fr3_joint7: .*mimic of 'fr3_joint6'; take it out",
    ),
    'no mass': (massless('fr3_link3'), r"fr3_joint3: .*link with mass.*'fr3_link3'.*<inertial>"),
    'negative mass': (
        FR3_URDF.replace('<mass value="2.2449013699"/>', '<mass value="-1"/>'),
        r"link 'fr3_link3': .*at least 0, found -1\.0 kg",
    ),
    'impossible inertia': (
        FR3_URDF.replace('ixx="0.02410142547240885"', 'ixx="-0.02"'),
        r"link 'fr3_link3': .*principal moments",
    ),
    'no number': (
        FR3_URDF.replace('<mass value="2.2449013699"/>', '<mass value="nan"/>'),
        r"fr3_link3': mass value: expected a finite number, found 'nan'",
    ),
    'bad vector': (FR3_URDF.replace('xyz="0.088 0 0"', 'xyz="0.088 0"'), 'three finite numbers'),
    'half an inertial': (
        FR3_URDF.replace('<mass value="2.2449013699"/>', ''),
        r"fr3_link3': expected mass and inertia",
    ),
    'no limits': (
        FR3_URDF.replace(J7_LIMIT, ''),
        r'(?s)fr3_joint7: .*limit of effort above 0, found none.*limits\.effort_nm.*'
        r'limit of velocity.*range from lower to upper, found 0\.0 to 0\.0',
    ),
    'effort of zero': (
        FR3_URDF.replace(J7_LIMIT, J7_LIMIT.replace('12.0', '0')),
        r'effort above 0, found 0\.0',
    ),
    'no parent': (
        FR3_URDF.replace('<parent link="fr3_link6"/>', '<parent link="link6"/>'),
        r"fr3_joint7: expected its parent among the links, found 'link6'",
    ),
    'two bases': (FR3_URDF.replace('</robot>', '<link name="x"/></robot>'), 'expected one base'),
    'ring': (
        FR3_URDF.replace(
            '</robot>',
            '<link name="a"/><link name="b"/>'
            '<joint name="j" type="fixed"><parent link="a"/><child link="b"/></joint>'
            '<joint name="k" type="fixed"><parent link="b"/><child link="a"/></joint></robot>',
        ),
        'links in a ring',
    ),
    'same name': (FR3_URDF.replace('"fr3_joint8"', '"fr3_joint7"'), 'no other joint has'),
    'no xml': ('<robot>', r'is not valid XML'),
    'no robot': ('<sdf/>', r'expected <robot>'),
    'doctype': ('<!DOCTYPE robot><robot/>', 'DOCTYPE'),
    'xacro': (
        '<robot xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:arm/></robot>',
        'xacro ARM.xacro > ARM.urdf',
    ),
}


@pytest.mark.parametrize('case', URDFS)
def test_a_urdf_that_cannot_be_used_is_refused_with_place_and_remedy(case):
    text, message = URDFS[case]
    with pytest.raises(ConfigError, match=message) as refused:
        check_arm(FR3, text, 'bad.urdf')
    assert str(refused.value).startswith('bad.urdf')


def changed(**settings):
    return lambda: check_arm(replace(FR3, **settings), FR3_URDF, 'fr3.urdf')


def limited(**limits):
    return lambda: changed(limits=replace(FR3.limits, **limits))()


FILES = {
    'unknown joint': (
        changed(joints=(*FR3.joints[:6], 'fr3_jiont7')),
        r"fr3\.urdf: joints: .*found 'fr3_jiont7'; did you mean 'fr3_joint7'",
    ),
    'unknown frame': (
        changed(payload_frame='flange'),
        r"payload_frame: expected a link of the URDF, found 'flange'; there are",
    ),
    'frame before the last joint': (changed(payload_frame='fr3_link4'), 'on the way from'),
    'another order': (changed(joints=FR3.joints[::-1]), 'in that order'),
    'joint twice': (changed(joints=(*FR3.joints[:6], 'fr3_joint1')), 'stands twice'),
    'no joints': (changed(joints=()), 'names of joints, found none'),
    'unknown locked joint': (
        changed(locked=(LockedJoint(joint='finger', position=0.0),)),
        r"locked: expected a joint that moves of the URDF, found 'finger'",
    ),
    'rotors missing': (
        changed(rotor_inertia_kgm2=()),
        r'rotor_inertia_kgm2: missing, and no URDF has it.*Zeros are allowed, but.*chatters',
    ),
    'too few rotors': (changed(rotor_inertia_kgm2=(0.1,)), 'expected 7 entries'),
    'negative rotor': (changed(rotor_inertia_kgm2=(-0.1,) * 7), 'at least 0'),
    'gravity of one number': (changed(gravity_mps2=(9.81,)), r'gravity_mps2: expected x, y and z'),
    'offset far away': (changed(payload_offset_m=(0.0, 0.0, 80.0)), r'payload_offset_m: .*10 m'),
    'lower end alone': (limited(position_lower_rad=(-1.0,) * 7), 'both ends of the range'),
    'too few efforts': (limited(effort_nm=(1.0,)), r'fr3\.urdf: StatedLimits.effort_nm: .*7 ent'),
    'too few rates': (limited(effort_rate_nmps=(1.0,)), r'effort_rate_nmps: expected 7 entries'),
    'crossed range': (
        limited(position_rad=(1.0,) * 7, position_lower_rad=(2.0,) * 7),
        r'fr3\.urdf: JointLimits.position_lower_rad',
    ),
}


@pytest.mark.parametrize('case', FILES)
def test_an_arm_file_that_does_not_fit_its_urdf_is_refused(case):
    build, message = FILES[case]
    with pytest.raises(ConfigError, match=message):
        build()


def test_a_joint_that_is_neither_controlled_nor_locked_is_refused():
    short = replace(FR3, joints=FR3.joints[:6], rotor_inertia_kgm2=FR3.rotor_inertia_kgm2[:6])
    with pytest.raises(ConfigError, match=r"locked: .*\['fr3_joint7'\] missing; state where"):
        check_arm(short, FR3_URDF, 'fr3.urdf')


def test_all_problems_of_a_kind_are_told_at_once():
    text = massless('fr3_link3').replace(J7_LIMIT, '')
    with pytest.raises(ConfigError, match=r'(?s)fr3_joint7: .*fr3_joint3: '):
        check_arm(FR3, text, 'fr3.urdf')


def test_limits_are_those_of_the_urdf_unless_the_arm_file_states_others():
    limits = checked('fr3').limits
    assert limits.effort_nm == (87.0,) * 4 + (12.0,) * 3
    assert (limits.lower_rad[3], limits.upper_rad[3]) == (-3.0421, -0.1518)
    stated = replace(FR3.limits, effort_nm=(5.0,) * 7, position_rad=(1.5,) * 7)
    limits = check_arm(replace(FR3, limits=stated), FR3_URDF, 'fr3.urdf').limits
    assert limits.effort_nm == (5.0,) * 7
    assert limits.lower_rad.tolist() == [-1.5] * 7
    assert limits.velocity_radps == checked('fr3').limits.velocity_radps


def test_a_continuous_joint_is_controlled_within_the_range_that_is_stated():
    arm = checked('two_link')
    assert 'continuous' in urdf_arms.urdf_text('two_link')
    assert 'continuous' not in arm.urdf
    assert arm.limits.position_rad == TWO_LINK.limits.position_rad


def test_geometry_is_not_needed():
    mesh = '<visual><geometry><mesh filename="package://none/x.dae"/></geometry></visual>'
    text = UR5E_URDF.replace('<link name="forearm_link">', f'<link name="forearm_link">{mesh}')
    assert 'mesh' not in check_arm(UR5E, text, 'ur5e.urdf').urdf


def test_an_arm_file_that_names_no_urdf_that_is_there_says_where_it_looked(tmp_path):
    path = tmp_path / 'arm.yaml'
    text = (urdf_arms.CONFIG / 'arms' / 'fr3.yaml').read_text()
    path.write_text(text)
    with pytest.raises(ConfigError, match=r'arm\.yaml: urdf: .*fr3\.urdf cannot be read'):
        read_arm_file(path)


@pytest.mark.parametrize(
    ('line', 'message'),
    [
        ('payload_frame: fr3_link8', r"arm\.yaml: missing key 'payload_frame'"),
        ('rotor_inertia_kgm2: [', r'arm\.yaml: ArmFile\.rotor_inertia_kgm2: missing, and no URDF'),
        ('  effort_rate_nmps: [', r"missing key 'effort_rate_nmps'"),
    ],
)
def test_a_key_that_is_missing_is_named_with_its_file(tmp_path, line, message):
    text = (urdf_arms.CONFIG / 'arms' / 'fr3.yaml').read_text()
    text = text.replace(',\n                     0.205544064]', ', 0.205544064]')
    lines = [row for row in text.splitlines() if not row.startswith(line)]
    (tmp_path / 'arm.yaml').write_text(
        '\n'.join(lines).replace('limits:', 'limits: {}')
        if 'effort_rate' in line
        else '\n'.join(lines)
    )
    (tmp_path / 'fr3.urdf').write_text(FR3_URDF)
    with pytest.raises(ConfigError, match=message):
        read_arm_file(tmp_path / 'arm.yaml')
