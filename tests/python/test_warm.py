"""inrush.warm(): a checkpoint in the page cache ahead of its load."""

import logging
import os
import threading

import inrush
import pytest
from conftest import random_tensor
from resources import write_sparse

MIB = 1 << 20


@pytest.fixture
def model(make_checkpoint):
    """Two files of 24 MiB that are not in the page cache."""
    path = make_checkpoint("model", {f"t{i}": random_tensor("U8", [6 * MIB], i) for i in range(8)}, shards=2)
    for file in inrush.open(path).files:
        with open(file.path, "rb") as opened:
            os.fdatasync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def resident_bytes(path):
    """What warm() itself would find there; it reads nothing that is there."""
    return inrush.warm(path).resident_bytes


def test_it_reads_what_is_not_there(model):
    report = inrush.warm(model)
    assert report.planned_bytes == 48 * MIB
    assert report.read_bytes > 0
    assert report.resident_bytes + report.read_bytes == report.planned_bytes
    assert report.left_bytes == 0
    assert report.seconds > 0
    assert resident_bytes(model) == 48 * MIB


def test_it_reads_what_the_load_would(model):
    spec = inrush.ShardSpec({"t1": 0}, rank=1, world=2)
    report = inrush.warm(model, only=["t0", "t1"], slices=spec)
    assert report.planned_bytes == 9 * MIB
    ways = inrush.load(model, only=["t0", "t1"], slices=spec).report.bytes_by_path
    assert ways and all(way.path.startswith("page cache ") for way in ways)


def test_in_the_background(model):
    warming = inrush.warm(model, background=True)
    report = warming.wait(60)
    assert report is not None and report.planned_bytes == 48 * MIB
    assert warming.done
    warming.cancel()  # too late, and no fault
    assert warming.wait() == report


def test_a_load_meanwhile_is_right(model):
    expected = inrush.load(model, page_cache="bypass")
    warming = inrush.warm(model, background=True)
    loaded = inrush.load(model)
    assert all((loaded[name] == expected[name]).all() for name in expected)
    assert warming.wait(60) is not None


def test_it_can_be_cancelled(model, monkeypatch):
    reached, go_on = threading.Event(), threading.Event()
    engine = inrush._inrush.warm

    def slow(checkpoint, only, slices, on_progress):
        def look_up(*figures):
            reached.set()
            go_on.wait(60)
            on_progress(*figures)

        return engine(checkpoint, only, slices, look_up)

    monkeypatch.setattr(inrush._inrush, "warm", slow)
    warming = inrush.warm(model, background=True)
    assert reached.wait(60)
    warming.cancel()
    go_on.set()
    assert warming.wait(60) is None
    assert warming.done


def test_a_fault_in_the_background_is_logged_and_not_raised(model, caplog):
    checkpoint = inrush.open(model)
    os.truncate(checkpoint.files[1].path, 100)
    with caplog.at_level(logging.WARNING, "inrush"):
        warming = inrush.warm(checkpoint, background=True)
        assert warming.wait(60) is None
    assert checkpoint.files[1].path in caplog.text
    with pytest.raises(inrush.Error) as raised:
        inrush.warm(checkpoint)
    assert raised.value.code == "corrupt_checkpoint"


def test_a_missing_checkpoint_is_an_error_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        inrush.warm(tmp_path / "absent", background=True)


def test_progress_and_what_it_raises(model):
    seen = []
    inrush.warm(model, progress=lambda *figures: seen.append(figures))
    assert seen == sorted(seen)
    assert {planned for _, planned in seen} == {48 * MIB}

    def fail(*_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        inrush.warm(model, progress=fail)


def test_the_interpreter_ends_while_it_runs(tmp_path, run_python):
    path = write_sparse(tmp_path / "m.safetensors", {"zeros": ("U8", [3 << 30])})
    code = f"""
        import inrush
        warming = inrush.warm({str(path)!r}, background=True)
        assert not warming.done
    """
    assert run_python(code).check().stderr == ""


def test_a_forked_child_does_not_wait_for_it(model, run_python):
    code = f"""
        import os
        import inrush
        warming = inrush.warm({str(model)!r}, background=True)
        child = os.fork()
        if child == 0:
            os._exit(0 if warming.wait() is None else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (0, 3)
        assert warming.wait(60) is not None
    """
    run_python(code).check()
