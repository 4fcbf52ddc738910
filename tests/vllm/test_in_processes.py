"""vLLM as it is served: an engine and workers of their own, each of which finds the plug-in by itself."""
import ast
import sys
from pathlib import Path

import pytest

from conftest import run_command
from serving import save_model

# Each process imports vLLM and torch anew: a minute on two idle cores.
pytestmark = pytest.mark.timeout(700)

SERVING = Path(__file__).with_name("serving.py")
# Its own processes, on any number of cores, and nothing that is seen from outside.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": 1, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_HOST_IP": "127.0.0.1",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), shard_size="500KB")


def serve(folder, size, workplace, *load_formats):
    """How it ended, and what it answered where it came to that."""
    output = workplace / "answers"
    command = [sys.executable, str(SERVING), str(folder), str(size), str(output), *load_formats]
    finished = run_command(command, workplace, timeout=600, **ENVIRONMENT)
    return finished, ast.literal_eval(output.read_text()) if output.exists() else None


def test_two_ranks(model, tmp_path):
    finished, answers = serve(model, 2, tmp_path, "inrush", "auto")
    assert finished.rc == 0, finished.stdout[-4000:] + finished.stderr[-4000:]
    assert finished.stderr.count("Loading safetensors by Inrush: 100%") == 1  # the first rank shows it
    assert answers["inrush"] == answers["auto"]


def test_a_damaged_shard_ends_the_server(tmp_path):
    folder = save_model(tmp_path / "model", shard_size="500KB")
    shard = sorted(folder.glob("*.safetensors"))[2]
    shard.write_bytes(shard.read_bytes()[:-100])
    finished, answers = serve(folder, 1, tmp_path, "inrush")
    assert finished.rc != 0
    assert answers is None
    assert "inrush._errors.Error" in finished.stdout + finished.stderr
    assert shard.name in finished.stdout + finished.stderr


def test_a_command_line_starts_early(model, tmp_path):
    code = """
        import logging, sys
        import inrush
        started = []
        inrush.warm = lambda path, *, background: started.append((path, background))
        sys.argv = ["vllm", "serve", sys.argv[1], "--load-format", "inrush"]
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
        assert started == [(sys.argv[2], True)], started
        logging.getLogger("inrush").warning("a fallback that people should see")
    """
    script = tmp_path / "early.py"
    script.write_text("\n".join(line.removeprefix(" " * 8) for line in code.splitlines()))
    finished = run_command([sys.executable, str(script), str(model)], tmp_path, timeout=200)
    assert finished.rc == 0, finished.stderr[-4000:]
    assert (finished.stdout + finished.stderr).count("a fallback that people should see") == 1
