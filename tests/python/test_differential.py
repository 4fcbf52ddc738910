"""Nearly right files get from Inrush the verdict that the reference gives them, and where both take one, the
same tensors. mutants.py makes them, differential.py compares; TEST_MUTANTS and TEST_FIRST_MUTANT choose how
many and from which on (make differential COUNT=1000000 FIRST=0)."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import corpus_bytes, variable
from differential import DELIBERATE, File, compare, reference_verdict

import inrush

MUTANTS = int(os.environ.get("TEST_MUTANTS") or 300_000)
FIRST_MUTANT = int(os.environ.get("TEST_FIRST_MUTANT") or 0)
PROCESSES = 2
DRIVER = Path(__file__).with_name("differential.py")


def start(first, count):
    command = [sys.executable, "-P", DRIVER, variable("TEST_CORPUS"), str(first), str(count)]
    # -P, and the folder on the path by name: it must not be the source tree's inrush that is compared.
    environment = {**os.environ, "PYTHONPATH": str(DRIVER.parent)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def outcome_of(children):
    counts, wrong = {}, []
    for child in children:
        output, _ = child.communicate()
        assert child.returncode == 0, f"{child.args} ended with {child.returncode}"
        result = json.loads(output)
        wrong += result["wrong"]
        for kind, count in result["counts"].items():
            counts[kind] = counts.get(kind, 0) + count
    return counts, wrong


def show(counts):
    rules = {rule: counts.get(rule, 0) for _, rule, _, _ in DELIBERATE}
    equal, wrong = counts.get("accepted", 0) + counts.get("refused", 0), counts.get("wrong", 0)
    print(f"\ncount: differential mutants {sum(counts.values())} equal {equal} "
          f"deliberate {sum(rules.values())} wrong {wrong}")
    print(f"both accept {counts.get('accepted', 0)}, both refuse {counts.get('refused', 0)}; deliberate:")
    for verdict, rule, reason, _ in DELIBERATE:
        print(f"  {rules[rule]:8} {verdict} by Inrush alone: {rule} ({reason})")


@pytest.mark.timeout(300 + MUTANTS // 500)
def test_mutants_get_the_verdict_of_the_reference(capsys):
    share = MUTANTS // PROCESSES
    firsts = range(FIRST_MUTANT, FIRST_MUTANT + share * PROCESSES, share)
    children = [start(first, share) for first in firsts]
    try:
        counts, wrong = outcome_of(children)
    finally:
        for child in children:
            child.kill()
            child.wait()
            child.stdout.close()
    with capsys.disabled():
        show(counts)
    again = "TEST_FIRST_MUTANT=SEED TEST_MUTANTS=2 tests/python/run.sh -k mutants"
    listed = "\n".join(f"SEED {seed}: {text}" for seed, text in wrong)
    assert not wrong, f"again, one of them: {again}\n{listed}"
    assert sum(counts.values()) == share * PROCESSES
    # Mutants that everybody refuses for one reason would be no test: a tenth must be whole, each rule met.
    assert MUTANTS < 1000 or counts["accepted"] * 10 >= sum(counts.values())
    assert MUTANTS < 100_000 or all(counts.get(rule) for _, rule, _, _ in DELIBERATE)


def test_the_corpus_gets_the_recorded_verdicts_from_both(corpus):
    file, kinds = File(), {}
    for row in corpus:
        content = corpus_bytes(row)
        reference, _ = reference_verdict(content)
        assert (reference == "accepted") == (row["reference"] == "accept"), row["name"]
        kind, text = compare(content, file)
        assert kind != "wrong", f"{row['name']}: {text}"
        kinds.setdefault(kind, []).append(row["name"])
    assert {"accepted", "refused", "a tensor name twice"} <= set(kinds)


def test_a_difference_is_seen():
    """A reader that takes whatever it is given, or refuses it, must not pass."""
    class Wrong(File):
        def __init__(self, forced):
            super().__init__()
            self.forced = forced

        def verdict(self, content):
            return self.forced, "made up"

    valid = b"\x02" + bytes(7) + b"{}"
    assert compare(valid, File()) == ("accepted", "")
    assert compare(valid, Wrong("refused"))[0] == "wrong"
    assert compare(valid[:-1], File()) == ("refused", "")
    assert compare(valid[:-1], Wrong("accepted"))[0] == "wrong"


def test_it_is_the_installed_package_that_is_compared(source_folder):
    assert not Path(inrush.__file__).is_relative_to(source_folder / "python")
