"""`check --native` with OpenRLHF's real parser."""

from importlib import metadata

import pytest

from batchbridge import read
from batchbridge.contract import plugins
from batchbridge.native_check import native_findings


def said(*options):
    argv = ["python3", "-m", "openrlhf.cli.train_ppo_ray", "--reward.remote_url", "reward.py", *options]
    reading = read(argv, framework="openrlhf", version=metadata.version("openrlhf"))
    return native_findings(plugins.adapters()["openrlhf"], reading)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--ds.packing_samples",), ("'>' not supported", "Only support `--packing_samples` with vLLM")),
        (("--vllm.num_engines", "0", "--ds.packing_samples"), ("Only support `--packing_samples` with vLLM",)),
        (("--rollout.micro_batch_size", "256"), ("number of sample batches must be",)),
    ],
)
def test_the_parser_says_what_it_refuses(options, text):
    (found,) = [one for one in said(*options) if one.severity == "error"]
    assert found.code == "BB036"
    assert any(one in found.message for one in text)


def test_a_legal_command_has_no_error():
    assert {one.severity for one in said("--vllm.num_engines", "1")} == {"note"}
