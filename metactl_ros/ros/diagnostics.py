# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What /diagnostics says of the controller, once a second: is it well, and if not, why."""

from collections.abc import Mapping
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from metactl_ros.control.modes import Mode
from metactl_ros.metrics import percentiles
from metactl_ros.runtime.control_thread import ControlThread
from metactl_ros.runtime.controller import LiveController, Tick
from metactl_ros.runtime.deadlines import BINS_MS
from metactl_ros.runtime.joint_samples import set_stamp
from metactl_ros.runtime.operator_desk import ModeLog, recent_lines, text_of
from metactl_ros.runtime.state_intake import names_of, SourceWatch
from metactl_ros.signals import seconds

LATE_SHARE = 0.01
"""Share of late ticks that makes a warning."""
LEVELS: dict[Mode, bytes] = {
    Mode.NOMINAL: DiagnosticStatus.OK,
    Mode.WARMUP: DiagnosticStatus.OK,
    Mode.FALLBACK: DiagnosticStatus.WARN,
    Mode.STOP: DiagnosticStatus.WARN,
    Mode.BLIND: DiagnosticStatus.ERROR,
    Mode.FAULT: DiagnosticStatus.ERROR,
}


def status(name: str, level: bytes, message: str, values: Mapping[str, object]) -> Any:
    """Return a DiagnosticStatus."""
    return DiagnosticStatus(
        name=name,
        level=level,
        message=message,
        hardware_id='metactl_ros',
        values=[KeyValue(key=key, value=_text(value)) for key, value in values.items()],
    )


def report(
    node_name: str,
    stamp_ns: int,
    thread: ControlThread,
    controller: LiveController,
    counts: Mapping[str, int],
    facts: Mapping[str, object],
    modes: ModeLog,
    sources: SourceWatch,
) -> Any:
    """Return a DiagnosticArray of the four checks: mode, timing, inputs, sources."""
    array = DiagnosticArray()
    set_stamp(array.header.stamp, stamp_ns)
    tick, deadlines = controller.last, thread.deadlines
    mode = tick.mode if tick else None
    level = DiagnosticStatus.STALE if mode is None else LEVELS[mode]
    text = 'waiting for a joint state' if mode is None else mode.name
    shield: dict[str, object] = dict(facts)
    if tick:
        now_ns, is_enabled = time.monotonic_ns(), controller.requests.is_enabled
        shield |= mode_values(tick, modes, now_ns, is_enabled=is_enabled)
        if level != DiagnosticStatus.OK:
            text = f'{tick.mode.name}: {shield["cause"]}'
        if tick.mode == Mode.FAULT:
            shield['last error'] = facts.get('last error') or shield['cause']
        shield |= {
            'shield reason': tick.step.decision.reason,
            'shield activation': controller.num_moved / max(controller.num_ticks, 1),
            'policy errors': controller.num_policy_errors,
            'failed output checks': thread.output.num_checks_failed,
        }
    if thread.error:
        level, text = DiagnosticStatus.ERROR, thread.error
    is_late = deadlines.num_late > LATE_SHARE * max(deadlines.num_ticks, 1)
    refused = sum(count for key, count in counts.items() if key not in ('accepted', 'dropped'))
    array.status = [
        status(f'{node_name}: mode', level, text, shield),
        status(
            f'{node_name}: timing',
            DiagnosticStatus.WARN if is_late else DiagnosticStatus.OK,
            f'{deadlines.num_late} of {deadlines.num_ticks} ticks late',
            timing_values(thread, controller),
        ),
        status(
            f'{node_name}: joint states',
            DiagnosticStatus.WARN if refused else DiagnosticStatus.OK,
            f'{refused} refused',
            dict(counts),
        ),
        source_status(node_name, sources),
    ]
    return array


def timing_values(thread: ControlThread, controller: LiveController) -> dict[str, object]:
    """Return how well deadlines are kept, and how long ticks take."""
    deadlines = thread.deadlines
    late = deadlines.lateness_ms()
    bins = [f'<= {end} ms' for end in BINS_MS] + [f'> {BINS_MS[-1]} ms']
    return {
        'ticks': deadlines.num_ticks,
        'mean period ms': deadlines.mean_period_ms(),
        'stale ticks': controller.num_stale,
        'late ticks': deadlines.num_late,
        'missed deadlines': deadlines.num_missed,
        'commands for ticks that hung': thread.output.num_stand_ins,
        'is realtime': thread.is_realtime,
        **{f'lateness {name} ms': value for name, value in late.items()},
        **{
            f'lateness {name}': count
            for name, count in zip(bins, deadlines.histogram, strict=True)
        },
        **quantiles_ms('tick', thread.tick_ns[: deadlines.num_ticks]),
        **quantiles_ms('inference', controller.inference_ns[: controller.num_ticks]),
    }


def mode_values(tick: Tick, modes: ModeLog, now_ns: int, *, is_enabled: bool) -> dict[str, object]:
    """Return mode, cause, since when, remedy, and the last changes."""
    text = text_of(tick.cause, is_enabled=is_enabled, is_ending=modes.is_ending)
    since_ns = modes.recent[-1].at_ns if modes.recent else now_ns
    return {
        'mode': tick.mode.name,
        'cause': f'{text.happened} ({tick.cause.name})',
        'joint': modes.recent[-1].joint if modes.recent else '',
        'since s': seconds(now_ns - since_ns),
        'to do': text.to_do(tick.mode),
        'mode changes': modes.num_changes,
        **recent_lines(modes.recent, now_ns),
    }


def source_status(node_name: str, sources: SourceWatch) -> Any:
    """Return a DiagnosticStatus of who else publishes."""
    findings = sources.findings
    return status(
        f'{node_name}: sources',
        DiagnosticStatus.ERROR if findings else DiagnosticStatus.OK,
        ' '.join(findings) or 'one source',
        {
            'publishers of joint states': names_of(sources.states),
            'states of others used': sources.streams.num_foreign_used,
        },
    )


def idle_report(node_name: str, stamp_ns: int, state: str, error: str) -> Any:
    """Return a DiagnosticArray of a controller that drives no arm, and why if it should."""
    array = DiagnosticArray()
    set_stamp(array.header.stamp, stamp_ns)
    level = DiagnosticStatus.ERROR if error else DiagnosticStatus.OK
    array.status = [status(f'{node_name}: mode', level, error or state, {'lifecycle': state})]
    return array


def quantiles_ms(name: str, durations_ns: Any) -> dict[str, object]:
    """Return p50, p99 and the largest of some durations, ms; nothing of none."""
    found = percentiles(durations_ns) or {}
    return {f'{name} {which} ms': value / 1e6 for which, value in found.items()}


def _text(value: object) -> str:
    return f'{value:.6g}' if isinstance(value, float) else str(value)
