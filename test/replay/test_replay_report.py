# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What a replay is reported as: whose figures they are, what was not compared, and the page."""

from dataclasses import replace
from html.parser import HTMLParser
import json
import re
import shutil
import subprocess
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip('rosbags', reason='needs the extra `sim`')
from support.made_bags import a_day, bag_of, doctored, NUM_TICKS, TELEMETRY, without, write
from support.tick_logs import ARM, Day, log_of, rows_of, SETTINGS

from metactl_ros.bag.reader import BagError
from metactl_ros.check.certificates import check_certificates, Violation
from metactl_ros.cli import main
from metactl_ros.policy.bundle import sha256_of
from metactl_ros.replay.page import kept_rows, MOST_LISTED, NUM_BUCKETS, printable, write_page
from metactl_ros.replay.recompute import Difference, Reproduction
from metactl_ros.replay.verdict import _recorded_bundle, replay_bag, ReplayRequest, summary
from metactl_ros.settings import share_directory, shipped_policy

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')
FACTS = {
    'verdict': 'equal: 640 of 640 ticks',
    'partial': False,
    'bag': {'ticks': 640, 'rmse [rad]': 0.0123456789, 'per joint': [0.5, 0.25], 'note': None},
}
EVIL = '<script>alert(1)</script>"\'&$x_{\x00'


@pytest.fixture(scope='module')
def log():
    rng = np.random.default_rng(0)
    return log_of(Day(lambda window: rng.uniform(-1.6, 1.6, 8)).bad().ticks)


def same_again(log, **changes):
    fields = {
        'effort_nm': log.effort_nm,
        'gains': log.gains,
        'gain_names': log.gain_names,
        'estimate_nm': None,
        'modes': log.shield['mode'].astype(np.int64),
        'action': log.action,
        'was_moved': log.shield['was_moved'] > 0.0,
        'quantities': ('mode', 'action', 'gain', 'effort'),
        'is_compared': np.ones(len(log.stamp_ns), dtype=bool),
        'is_open_loop': False,
        'first_difference': None,
        'largest_difference_nm': 0.0,
    }
    return Reproduction(**fields | changes)


class Page(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, path):
        super().__init__()
        self.text, self.tags, self.words = path.read_text(encoding='utf-8'), [], []
        self.feed(self.text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words.append(data)

    @property
    def images(self):
        return [attributes for tag, attributes in self.tags if tag == 'img']

    @property
    def svgs(self):
        start = 'data:image/svg+xml,'
        return [unquote(image['src'].removeprefix(start)) for image in self.images]

    @property
    def colour(self):
        (found,) = (a['class'] for _, a in self.tags if 'verdict' in a.get('class', ''))
        return found.split()[1]

    def says(self, words):
        return words in ' '.join(self.words)


@pytest.fixture(scope='module')
def page(tmp_path_factory, log):
    return page_of(tmp_path_factory.mktemp('page'), log, same_again(log))


def page_of(tmp_path, log, again, violations=(), facts=FACTS, title='Replay'):
    path = tmp_path / 'pages' / 'page.html'
    write_page(path, title, [('summed up', title)], facts, log, again, violations)
    return Page(path)


def test_a_page_needs_nothing_but_itself(page):
    assert {tag for tag, _ in page.tags}.isdisjoint({'script', 'link', 'iframe', 'object', 'a'})
    for _, attributes in page.tags:
        assert 'href' not in attributes
        assert attributes.get('src', 'data:').startswith('data:')
    for svg in page.svgs:
        root = ElementTree.fromstring(svg)
        for node in root.iter():
            for name, value in node.attrib.items():
                assert not name.endswith(('href', 'src')) or value.startswith('#')
        assert 'url(http' not in svg
    assert "default-src 'none'" in page.text


def test_a_page_shows_every_figure_with_a_text_for_each(page):
    # Position, error, effort and difference per joint, eight gains, shield, timing.
    assert len(page.images) == 4 * 2 + 8 + 3 + 3
    assert all(len(image['alt']) > 20 for image in page.images)
    headings = ('Position of joint1', 'Effort of joint2, recorded and computed again', 'Modes')
    for words in (
        *headings,
        'Gain kd_per_s.joint1',
        'Lateness, how often',
        'Inference time, how often',
    ):
        assert page.says(words)
    assert not any('$' in svg for svg in page.svgs)  # formulas are not drawn, for names' sake
    for label in (
        'time [s]',
        'position [rad]',
        'effort [N m]',
        'K_d [1/s]',
        'bias [N m]',
        'late [ms]',
    ):
        assert any(f'>{label}</text>' in svg for svg in page.svgs)


def test_a_page_begins_with_the_verdict_and_tells_the_facts(page):
    words = [word.strip() for word in page.words if word.strip()]
    begin = words.index('Replay', 2)
    top = ['Replay', 'equal: 640 of 640 ticks', 'summed up', 'Replay']
    assert words[begin : begin + 4] == top
    folded = ' '.join(words[words.index('All figures') :])
    for row in ('partial no', 'ticks 640', 'rmse [rad] 0.0123457', 'per joint 0.5, 0.25'):
        assert row in folded


def test_the_colour_is_that_of_what_was_found(tmp_path, log, monkeypatch):
    monkeypatch.setattr('metactl_ros.replay.page.draw_plots', lambda *_: {})
    difference = Difference(3, 0.03, 'effort', 'joint1', 1.0, 2.0)
    found = [Violation(5, 0.05, 'effort', 1.0, 0.0)]
    pages = {
        'green': [(log, same_again(log), [])],
        'amber': [
            (log, same_again(log, is_open_loop=True), []),
            (replace(log, num_incomplete=1), same_again(log), []),
            (replace(log, problems=('it ends in the middle',)), same_again(log), []),
            (log, same_again(log), [], FACTS | {'partial': ['commands are missing']}),
            (log, same_again(log, is_compared=np.zeros(len(log.stamp_ns), dtype=bool)), []),
        ],
        'red': [
            (log, same_again(log), found),
            (log, same_again(log, first_difference=difference), []),
        ],
    }
    for colour, runs in pages.items():
        for run in runs:
            assert page_of(tmp_path, *run).colour == colour


def test_what_is_wrong_is_listed_and_marked_in_every_plot_over_time(tmp_path, log):
    difference = Difference(300, 3.0, 'effort', 'joint1', 1.25, 1.5)
    violations = [Violation(k, k / 100, 'effort rate', 1.0 + k, 0.5) for k in range(300)]
    again = same_again(log, first_difference=difference)
    page = page_of(tmp_path, log, again, violations)
    assert page.says('Tick 300, at 3.000 s: effort of joint1 was recorded as 1.25')
    assert page.says('Violations: 300')
    assert page.says(f'And {300 - MOST_LISTED} more.')
    assert sum(tag == 'tr' for tag, _ in page.tags) == MOST_LISTED + 1 + 1 + 6
    over_time = [svg for svg in page.svgs if 'time [s]' in svg]
    assert len(over_time) == 20
    for svg in over_time:
        assert '>violation</text>' in svg
        assert '>first difference</text>' in svg


def test_where_nothing_is_wrong_nothing_is_marked(page):
    assert not any('>violation<' in svg or '>first difference<' in svg for svg in page.svgs)
    assert not page.says('Violations')


def test_curves_of_another_policy_say_that_they_are_open_loop(tmp_path, log):
    again = same_again(log, is_open_loop=True, effort_nm=log.effort_nm + 1.0)
    page = page_of(tmp_path, log, again)
    captions = [word for word in page.words if 'computed' in word]
    assert len(captions) == 2 * 2 + 8
    assert all('open loop' in caption for caption in captions)
    assert not page.says('computed again')


def test_names_from_the_bag_stay_text(tmp_path, log):
    shield = {**log.shield}
    evil = replace(
        log,
        joint_names=(EVIL, '_$\x1b[0m' + 'x' * 500),
        gain_names=tuple(f'{EVIL}{k}' for k in range(8)),
        shield=shield,
    )
    difference = Difference(3, 0.03, EVIL, EVIL, 1.0, 2.0)
    violations = [Violation(5, 0.05, EVIL, 1.0, 0.0)]
    facts = {'verdict': EVIL, EVIL: {EVIL: EVIL}, 'list': [EVIL, '\udc80']}
    again = same_again(log, first_difference=difference)
    page = page_of(tmp_path, evil, again, violations, facts, EVIL)
    assert '<script' not in page.text.lower()
    assert page.says('<script>alert(1)</script>')
    for svg in page.svgs:
        root = ElementTree.fromstring(svg)  # well-formed, whatever a name holds
        assert not any(node.tag.endswith('script') for node in root.iter())


def test_numbers_that_are_none_do_not_spoil_the_page(tmp_path, log):
    efforts, gains = log.effort_nm.copy(), log.gains.copy()
    efforts[5], efforts[6], gains[7] = np.nan, 1e300, np.inf
    shield = {
        name: np.where(np.arange(len(values)) == 8, np.nan, values)
        for name, values in log.shield.items()
    }
    broken = replace(log, effort_nm=efforts, gains=gains, shield=shield)
    violations = check_certificates(broken, ARM, SETTINGS.controller)
    page = page_of(tmp_path, broken, same_again(log), violations)
    assert len(page.images) == 22
    assert page.says('finite')


def test_a_log_of_one_tick_has_a_page(tmp_path, log):
    one = rows_of(log, slice(0, 1))
    assert len(page_of(tmp_path, one, same_again(one)).images) == 22


def test_a_long_line_is_thinned_and_keeps_its_peaks():
    values = np.sin(np.arange(60_000) / 50.0)
    values[12_345], values[54_321], values[7] = 5.0, -5.0, np.nan
    rows = kept_rows(values)
    assert len(rows) <= 2 * NUM_BUCKETS + 2
    assert {0, 12_345, 54_321, 59_999} <= set(rows.tolist())
    assert kept_rows(values[:900]).tolist() == list(range(900))


def test_a_name_is_shown_as_one_short_line():
    assert printable('a\nb\x00') == 'a?b?'
    assert len(printable('x' * 99)) == 40


def test_a_page_of_a_minute_stays_small(tmp_path, log):
    minute = rows_of(log, np.arange(6000) % len(log.stamp_ns))
    minute = replace(minute, stamp_ns=np.arange(6000) * 10_000_000)
    page = page_of(tmp_path, minute, same_again(minute))
    assert len(page.text) < 2_000_000


@pytest.mark.skipif(CHROMIUM is None, reason='needs Chromium: apt-get install chromium')
@pytest.mark.parametrize('width', [420, 1400])
def test_a_browser_shows_every_plot_and_complains_of_nothing(tmp_path, log, width):
    difference = Difference(300, 3.0, 'effort', 'joint1', 1.25, 1.5)
    again = same_again(log, first_difference=difference)
    page = page_of(tmp_path, log, again, [Violation(5, 0.05, 'effort', 1.0, 0.0)])
    path = tmp_path / 'pages' / 'page.html'
    output = browse(path, tmp_path).stderr
    assert 'CONSOLE' not in output
    # A script asks for the sizes; the page itself forbids scripts, so a copy allows them.
    probe = """<script>window.onload = () => {
      const sizes = [...document.images].map(i => [i.naturalWidth, i.naturalHeight, i.width]);
      const wide = document.documentElement.scrollWidth;
      document.title = JSON.stringify({sizes, wide}); };</script>"""
    text = re.sub(r'<meta http-equiv[^>]*>', '', page.text)
    style = f'<style>html {{ width: {width}px; }}</style>'
    path.write_text(text.replace('</head>', f'{style}{probe}</head>'))
    done = browse(path, tmp_path, '--dump-dom', f'--window-size={width},900')
    assert 'CONSOLE' not in done.stderr
    found = json.loads(re.search(r'<title>(.*?)</title>', done.stdout)[1])
    assert len(found['sizes']) == len(page.images)
    assert all(min(size) > 100 for size in found['sizes'])
    assert found['wide'] <= max(width, 500)  # a headless window is never narrower than 500


def browse(path, folder, *options):
    command = [CHROMIUM, '--headless=new', '--no-sandbox', '--disable-gpu', *options]
    command += ['--enable-logging=stderr', f'--user-data-dir={folder / "profile"}', path.as_uri()]
    if '--dump-dom' not in options:
        command.insert(1, f'--screenshot={folder / "page.png"}')
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)


@pytest.fixture(scope='module')
def rows():
    return bag_of(a_day())


@pytest.fixture
def asked(tmp_path):
    """Return the replay of messages, once they are in a bag, and its table."""

    def ask(rows, **options):
        result = replay_bag(ReplayRequest(bag=write(tmp_path / 'bag.mcap', rows), **options))
        return result, summary(result)

    return ask


def test_in_open_loop_each_figure_says_whose_it_is(asked, rows):
    own, own_table = asked(rows)
    other, table = asked(rows, controller='ct_best')
    assert (own.exit_code, other.exit_code) == (0, 0)
    assert own.facts['recording'] == other.facts['recording']
    assert other.facts['recording']['of'] == 'ct'
    lines = dict(table)
    assert lines['open loop, what would have commanded'] == 'ct_best'
    assert lines['open loop, would have: tracking RMSE'] == 'not known, its efforts moved nothing'
    for name, text in own_table:
        if name.startswith(('tracking', 'effort', 'moved', 'modes', 'rate', 'lateness')):
            assert lines[f'recorded run: {name}'] == text
            assert name not in lines
    for joint in ('joint1', 'joint2'):
        name = f'effort {joint}: RMS, peak'
        would = other.facts['computed_again']['effort'][joint]
        expected = f'{would["rms_nm"]:.4g}, {would["peak_nm"]:.4g} N m'
        assert lines[f'open loop, would have: {name}'] == expected
        assert lines[f'open loop, would have: {name}'] != lines[f'recorded run: {name}']
    assert 'open loop, would have: modes' in lines


def test_in_open_loop_nothing_is_called_compared(asked, rows):
    result, table = asked(rows, controller='ct_best')
    assert result.facts['verdict'] == 'open loop, compared with nothing'
    assert result.facts['ticks']['compared'] == 0
    assert result.facts['ticks']['not_compared'] == {'open loop': NUM_TICKS}
    assert result.facts['ticks']['quantities_compared'] == []
    assert result.facts['largest_difference_nm'] is None
    assert ('ticks, of these compared', f'{NUM_TICKS}, 0') in table
    assert not any(text == 'equal to the bit' for _, text in table)


def test_in_open_loop_the_page_says_whose_the_curves_are(tmp_path, rows):
    bag = write(tmp_path / 'bag.mcap', rows)
    assert main(['replay', str(bag), '--controller', 'ct_best', '--out', str(tmp_path)]) == 0
    page = (tmp_path / 'replay.html').read_text()
    for heading in ('Position of joint1', 'Modes', 'Lateness of each tick'):
        assert f'<figcaption>{heading}, of the recorded run</figcaption>' in page
    assert 'class="verdict amber"' in page
    assert main(['replay', str(bag), '--out', str(tmp_path)]) == 0
    page = (tmp_path / 'replay.html').read_text()
    assert 'of the recorded run' not in page
    assert 'class="verdict green"' in page


def test_commands_are_judged_in_open_loop_too(asked, rows):
    result, _ = asked(without(rows, 'joint_commands', range(NUM_TICKS)), controller='ct_best')
    assert result.exit_code == 3


def test_ticks_that_are_not_compared_are_told_with_their_reason(asked, rows):
    for kind in TELEMETRY:
        rows = without(rows, f'controller/{kind}', {0, 1, 2})
    rows = without(rows, 'controller/gains', {40})
    rows = doctored(rows, 'controller/feedback', lambda m: m.position.fill(np.nan), {50})
    result, table = asked(rows)
    counts = result.facts['ticks']
    reasons = counts['not_compared']
    assert counts['recorded'] == NUM_TICKS - 3
    assert counts['compared'] + sum(reasons.values()) == counts['recorded']
    assert reasons['a message of the tick is missing'] == 1
    assert reasons['impossible values'] == 1
    assert reasons['the recording begins in the middle of a run'] > 0
    assert reasons['what the loop knew is missing after a gap'] > 0
    for why, count in reasons.items():
        assert (f'  not compared: {why}', str(count)) in table


def test_nothing_compared_is_never_green(asked, rows):
    for kind in TELEMETRY:
        rows = without(rows, f'controller/{kind}', {*range(3), *range(20, NUM_TICKS)})
    result, table = asked(rows)
    assert not result.again.is_compared.any()
    assert result.exit_code == 3
    assert 'no tick could be compared' in result.problems
    assert 'nothing could be compared' in result.facts['verdict']
    assert not any(text == 'equal to the bit' for _, text in table)


def test_nothing_compared_is_a_problem_by_itself(asked, rows):
    from dataclasses import replace

    result, _ = asked(rows)
    again = replace(result.again, is_compared=np.zeros(NUM_TICKS, dtype=bool))
    assert replace(result, again=again).exit_code == 3


def test_a_hold_that_cannot_be_certified_is_counted(asked):
    rows = bag_of(a_day())
    stop = 3.0

    def stopped(message):
        message.position[message.name.index('mode')] = stop

    for kind in TELEMETRY:
        rows = without(rows, f'controller/{kind}', {0, 1, 2})
    result, table = asked(doctored(rows, 'controller/shield', stopped, range(NUM_TICKS)))
    assert result.facts['ticks']['not_certified'] == {'a hold begun in a gap': NUM_TICKS - 3}
    assert result.facts['ticks']['certified'] == 0
    assert ('  not certified: a hold begun in a gap', str(NUM_TICKS - 3)) in table


def test_efforts_that_are_no_numbers_are_told_as_none(tmp_path, rows):
    def broken(message):
        message.effort[:] = np.nan

    wrong = doctored(rows, 'controller/output', broken, {30})
    bag = write(tmp_path / 'bag.mcap', wrong)
    assert main(['replay', str(bag), '--out', str(tmp_path)]) != 0
    facts = json.loads((tmp_path / 'replay.json').read_text())
    assert facts['recording']['effort']['joint1']['rms_nm'] is None


def arm_that_is_found(path, parameters, **request):
    bag = write(path, bag_of(a_day(), **parameters))
    result = replay_bag(ReplayRequest(bag=bag, **request))
    assert result.facts['verdict'] == 'equal'
    assert ('arm', result.facts['arm']) in summary(result)
    return result.facts['arm']


def test_the_arm_that_a_bag_names_is_found_by_itself(tmp_path):
    mine = tmp_path / 'mine.yaml'
    shutil.copy(share_directory() / 'config' / 'arm.yaml', mine)
    assert arm_that_is_found(tmp_path / 'a.mcap', {}) == 'two_link'
    assert arm_that_is_found(tmp_path / 'b.mcap', {'arm_file': ''}) == 'two_link'
    assert arm_that_is_found(tmp_path / 'c.mcap', {'arm_file': str(mine)}) == str(mine)
    here = arm_that_is_found(tmp_path / 'd.mcap', {'arm_file': '/not/here.yaml'}, arm_file=mine)
    assert here == str(mine)


@pytest.mark.parametrize('named', ['/not/here.yaml', 'nobody', 7, ['x'], 'x' * 9000, 'a\0.yaml'])
def test_an_arm_that_is_not_here_is_asked_for(named, tmp_path):
    bag = write(tmp_path / 'one.mcap', bag_of(a_day(), arm_file=named))
    with pytest.raises(BagError, match=r'was recorded with the arm .* give the arm with --arm'):
        replay_bag(ReplayRequest(bag=bag))


def test_the_joints_of_another_arm_are_refused_with_its_name(tmp_path):
    pytest.importorskip('pinocchio', reason="needs Pinocchio: pip install 'metactl_ros[urdf]'")
    bag = write(tmp_path / 'one.mcap', bag_of(a_day(), arm_file='fr3'))
    with pytest.raises(BagError, match=r"expected fr3_joint1, .*those of the arm 'fr3'; .*--arm"):
        replay_bag(ReplayRequest(bag=bag))


def test_the_bundle_of_a_bag_is_where_its_node_found_it(log, tmp_path):
    moved = shutil.copytree(shipped_policy(), tmp_path / 'mine.metactl')
    (moved / 'SHA256SUMS').write_text('another one')
    sha256 = sha256_of(moved)
    told = replace(log, facts={'parameters': json.dumps({'policy': str(moved)})})
    assert _recorded_bundle(told, sha256) == moved
    assert _recorded_bundle(told, sha256_of(shipped_policy())) == shipped_policy()
    assert _recorded_bundle(log, sha256) is None
    for nonsense in (7, '', 'a\0', '/nowhere', 'x' * 9000):
        other = replace(log, facts={'parameters': json.dumps({'policy': nonsense})})
        assert _recorded_bundle(other, sha256) is None
