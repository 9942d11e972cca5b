# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0
"""What no robot loads: wrong paths, other files than plain ones, damage, hostile graphs."""

import os
from pathlib import Path

from hostile.runs import make_socket
import numpy as np
import onnx
import pytest
from support.bundles import files_of, golden_of, refusal, reseal

from metactl_ros.errors import BundleError, MetactlError
from metactl_ros.policy.bundle import MAX_BYTES
from metactl_ros.policy.network import verify
from metactl_ros.policy.onnx_file import MAX_FIELDS

CONTENT = sorted(name for name in MAX_BYTES if name != 'SHA256SUMS')


def test_a_path_without_a_bundle_is_refused(made, load, tmp_path):
    assert 'No such file' in refusal(load, tmp_path / 'none.metactl')
    assert 'Not a directory' in refusal(load, made / 'policy.onnx')
    assert 'null byte' in refusal(load, tmp_path / 'a\0b')
    os.mkfifo(tmp_path / 'fifo.metactl')
    assert 'Not a directory' in refusal(load, tmp_path / 'fifo.metactl')
    (tmp_path / 'loop.metactl').symlink_to(tmp_path / 'loop.metactl')
    assert 'loop' in refusal(load, tmp_path / 'loop.metactl')
    (tmp_path / 'empty.metactl').mkdir()
    assert 'SHA256SUMS is missing' in refusal(load, tmp_path / 'empty.metactl')


def test_a_link_to_a_bundle_is_followed(made, load, tmp_path):
    (tmp_path / 'current.metactl').symlink_to(made)
    assert load(tmp_path / 'current.metactl').sha256 == load(made).sha256


def test_a_refusal_is_an_error_of_this_package(load, tmp_path):
    with pytest.raises(MetactlError):
        load(tmp_path)


@pytest.mark.parametrize('name', MAX_BYTES)
def test_a_missing_file_is_refused(spoilt, load, name):
    (spoilt / name).unlink()
    assert f'{name} is missing' in refusal(load, spoilt)


@pytest.mark.parametrize('name', ['weights.bin', '.hidden', 'policy.pkl'])
def test_an_unlisted_file_is_refused(spoilt, load, name):
    (spoilt / name).write_text('')
    assert f'found {name!r}, too; remove it' in refusal(load, spoilt)


def test_a_file_is_not_covered_by_listing_it(spoilt, load):
    (spoilt / 'extra').write_bytes(b'x')
    reseal(spoilt)
    assert "found 'extra', too" in refusal(load, spoilt)


def to_link_outside(path):
    path.symlink_to(path.parent.with_name('outside'))


def to_link_inside(path):
    path.symlink_to('elsewhere')


def to_loop(path):
    path.symlink_to(path.name)


@pytest.mark.parametrize('name', MAX_BYTES)
@pytest.mark.parametrize(
    ('replacement', 'reason'),
    [
        (os.mkfifo, 'a named pipe, not a regular file'),
        (make_socket, 'a socket, not a regular file'),
        (Path.mkdir, 'a folder, not a regular file'),
        (to_link_outside, 'symbolic link'),
        (to_link_inside, 'symbolic link'),
        (to_loop, 'symbolic link'),
    ],
)
def test_only_regular_files_are_read(spoilt, load, tmp_path, name, replacement, reason):
    (spoilt / name).rename(tmp_path / 'outside')
    replacement(spoilt / name)
    message = refusal(load, spoilt)
    assert str(spoilt / name) in message
    assert reason in message


@pytest.mark.parametrize('name', MAX_BYTES)
def test_an_empty_or_too_large_file_is_refused(spoilt, load, name):
    os.truncate(spoilt / name, 0)
    most = f'{spoilt / name}: expected 1 to {MAX_BYTES[name]} bytes, found'
    assert f'{most} none' in refusal(load, spoilt)
    os.truncate(spoilt / name, MAX_BYTES[name] + 1)
    assert f'{most} more' in refusal(load, spoilt)
    os.truncate(spoilt / name, MAX_BYTES[name])
    assert 'SHA-256' in refusal(load, spoilt)
    assert max(MAX_BYTES.values()) == 16 * 2**20


def test_a_thousand_bit_flips_and_truncations_are_refused(spoilt, load):
    rng, good = np.random.default_rng(0), files_of(spoilt)
    for _ in range(1000):
        name = rng.choice(list(MAX_BYTES))
        at = int(rng.integers(len(good[name])))
        bad = bytearray(good[name])
        bad[at] ^= 1 << int(rng.integers(8))
        (spoilt / name).write_bytes(bad if rng.random() < 0.5 else good[name][:at])
        message = refusal(load, spoilt)
        assert name == 'SHA256SUMS' or str(spoilt / name) in message
        (spoilt / name).write_bytes(good[name])
    load(spoilt)


@pytest.mark.parametrize('name', CONTENT)
def test_under_a_valid_seal_damage_is_refused_or_harmless(spoilt, load, name, capfd, monkeypatch):
    # Without a process for each, which takes 0.2 s.
    monkeypatch.setattr('metactl_ros.policy.bundle.verify_confined', verify)
    rng, good = np.random.default_rng(1), (spoilt / name).read_bytes()
    window, action = golden_of(spoilt)
    for _ in range(200):
        bad = bytearray(good)
        bad[int(rng.integers(len(good)))] ^= 1 << int(rng.integers(8))
        reseal(spoilt, **{name.replace('.', '_'): bytes(bad)})
        try:
            bundle = load(spoilt)
        except BundleError:
            continue
        np.testing.assert_allclose(bundle.policy(window), action, rtol=0, atol=2e-6)
    assert capfd.readouterr() == ('', '')


def test_more_lines_than_files_are_refused(spoilt, load):
    with (spoilt / 'SHA256SUMS').open('a') as file:
        file.write('\n')
    assert f'{spoilt / "SHA256SUMS"}: expected one line per file' in refusal(load, spoilt)


# Graphs, under a valid seal


def change_graph(bundle, change):
    model = onnx.load_from_string((bundle / 'policy.onnx').read_bytes())
    change(model)
    return reseal(bundle, policy_onnx=model.SerializeToString())


def set_weights(model, value):
    """Set one weight of the largest matrix."""
    tensor = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    weights = np.frombuffer(tensor.raw_data).copy()
    weights[7] = value
    tensor.raw_data = weights.tobytes()


def move_outside(model):
    """Name a file in the working directory for the largest matrix; onnxruntime would read it."""
    tensor = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    Path('weights.bin').write_bytes(tensor.raw_data)
    onnx.external_data_helper.set_external_data(tensor, 'weights.bin')
    tensor.ClearField('raw_data')


def use_subgraph(model):
    model.graph.node[0].attribute.add(name='then_branch', type=5).g.name = 'hidden'


def use_subgraphs(model):
    model.graph.node[0].attribute.add(name='branches', type=10).graphs.add(name='hidden')


def look_beyond_the_window(model):
    """Let the last row be the hundredth, which only running the graph finds out."""
    gather = next(node for node in model.graph.node if node.op_type == 'Gather')
    index = next(one for one in model.graph.initializer if one.name == gather.input[1])
    index.raw_data = np.int64(99).tobytes()


def rename(part, name):
    """Rename an input or output everywhere."""

    def change(model):
        old = getattr(model.graph, part)[0].name
        getattr(model.graph, part)[0].name = name
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [name if one == old else one for one in names]

    return change


def fix_batch(model):
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


@pytest.mark.parametrize(
    ('change', 'reason'),
    [
        (move_outside, 'external data'),
        (lambda m: setattr(m.graph.initializer[0], 'data_location', 1), 'external data'),
        (lambda m: setattr(m.graph.node[0], 'domain', 'evil'), 'operators of another domain'),
        (lambda m: m.opset_import.add(domain='com.microsoft'), 'operators of another domain'),
        (lambda m: setattr(m.graph.node[0], 'op_type', 'Loop'), "the operator 'Loop'"),
        (use_subgraph, 'control flow'),
        (use_subgraphs, 'control flow'),
        (lambda m: m.functions.add(name='f'), 'functions'),
        (lambda m: m.graph.sparse_initializer.add(), 'sparse weights'),
        (lambda m: m.metadata_props.add(key='a', value='b'), 'metadata'),
        (lambda m: setattr(m.graph.node[0], 'doc_string', '/home/me'), 'field 6 of its node'),
        (lambda m: m.graph.node.pop(), "nothing computes its output 'action'"),
        (rename('input', 'obs'), "found [('obs', 'tensor(float)', [5, 11])"),
        (rename('output', 'gains'), "('gains', 'tensor(float)', [8])]"),
        (fix_batch, "found [('window', 'tensor(float)', [1, 5, 11])"),
        (look_beyond_the_window, 'has no axis 99 in 5 axes'),
        (lambda m: set_weights(m, np.nan), 'found a difference of nan'),
        (lambda m: set_weights(m, np.inf), 'found a difference of nan'),
        (lambda m: set_weights(m, 1e30), 'found a difference of'),
        (lambda m: set_weights(m, 0.5), 'found a difference of'),
    ],
)
def test_a_graph_that_is_not_the_policy_is_refused(
    spoilt, load, tmp_path, monkeypatch, capfd, change, reason
):
    monkeypatch.chdir(tmp_path)
    message = refusal(load, change_graph(spoilt, change))
    assert str(spoilt / 'policy.onnx') in message
    assert reason in message
    assert capfd.readouterr() == ('', '')  # a refusal is told once, by whoever catches it


def test_a_name_that_onnxruntime_could_not_print_is_refused(spoilt, load):
    data = (spoilt / 'policy.onnx').read_bytes()
    name = onnx.load_from_string(data).graph.node[0].name.encode()
    for bad in (b'\xe1', b'\x1b'):
        reseal(spoilt, policy_onnx=data.replace(name, bad + name[1:]))
        assert 'the unprintable name' in refusal(load, spoilt)


def test_a_graph_that_was_only_parsed_and_written_is_accepted(spoilt, load):
    load(change_graph(spoilt, lambda model: None))


@pytest.mark.parametrize(
    ('data', 'reason'),
    [
        (b'\x80', 'not an ONNX file'),  # a number without an end
        (b'\x80' * 10 + b'\x01\x00', 'not an ONNX file'),  # a number of more than 64 bits
        (b'\x3a\x7f', 'not an ONNX file'),  # a graph beyond the end
        (b'\x09\x00', 'not an ONNX file'),  # eight bytes beyond the end
        (b'\x0d\x00', 'not an ONNX file'),  # four bytes beyond the end
        (b'\x0b\x0c', 'not an ONNX file'),  # a group, which protobuf has given up
        (b'PK\x03\x04' * 9, 'field 10 of its model'),  # a model.zip under another name
        (b'\x80\x04\x95' * 9, 'field 64 of its model'),  # a pickle
        (b'\x08\x0a', 'not an ONNX file'),  # a model without a graph
        (b'\x42\x00' * (MAX_FIELDS + 1), f'more than {MAX_FIELDS} fields'),
        (b'\x08\x0a\x08\x0a', 'not an ONNX file'),  # two versions
        (b'\x3a\x04\x0a\x02\x20\x01', 'not an ONNX file'),  # a number for an operator
        (b'\x38\x01', 'not an ONNX file'),  # a number for a graph
    ],
)
def test_what_is_no_graph_at_all_is_refused(spoilt, load, data, reason):
    message = refusal(load, reseal(spoilt, policy_onnx=data))
    assert str(spoilt / 'policy.onnx') in message
    assert reason in message
