"""Reading and writing TRL's settings, without TRL."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import batchbridge
from batchbridge.contract.reading import Context, Source
from batchbridge.errors import CannotWrite
from batchbridge.meaning.findings import verdict
from batchbridge.reading.files import load_source
from batchbridge.render.text import explain
from batchbridge.rules.nearest_numbers import LARGEST
from batchbridge_open_r1.config import OpenR1Adapter
from batchbridge_trl import declared
from batchbridge_trl.config import TrlAdapter
from batchbridge_trl.settings import TRL_GROUPS
from batchbridge_trl.sizes import ACCUMULATION, FIELDS, GENERATIONS, MICRO

ARTICLE = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_generations": 6,
    "num_train_epochs": 2,
}


def read(values, *, version="1.16.0", world=3, prompts=None):
    context = Context(framework_version=version, world_size=world, dataset_size=prompts)
    return TrlAdapter().read(load_source(values), context)


def codes(reading):
    return [finding.code for finding in reading.findings]


def recipe(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("prompts", "steps"), [(8000, 4000), (7999, 3998), (8001, 4000), (8003, 4000), (8004, 4002)])
def test_micro_4_accumulation_2_on_3_devices_with_6_generations_for_2_epochs(prompts, steps):
    assert read(ARTICLE, prompts=prompts).derived["total_optimizer_steps"] == steps


@pytest.mark.parametrize(("epochs", "steps"), [(1.5, 3000), (2.3, 4600), (0.1, 200)])
def test_fractional_epochs_are_counted_in_steps_of_whole_epochs(epochs, steps):
    assert read({**ARTICLE, "num_train_epochs": epochs}, prompts=8000).derived["total_optimizer_steps"] == steps


@pytest.mark.parametrize("version", ["0.15.0", "0.18.0", "0.29.0", "1.16.0"])
@pytest.mark.parametrize("value", [None, True, False, "full_shard auto_wrap", ["full_shard"], []])
def test_fsdp_is_a_flag_text_or_a_list_in_every_version(version, value):
    # transformers 4.51.3 to 5.23.0 TrainingArguments take each, whatever the field's annotation says.
    reading = read({**ARTICLE, "fsdp": value}, version=version)
    assert verdict(reading.findings) == "valid"
    assert reading.spec == read(ARTICLE, version=version).spec


def test_max_steps_wins_over_epochs():
    assert read({**ARTICLE, "max_steps": 7}).spec.horizon.optimizer_steps == 7


@pytest.mark.parametrize(("version", "tokens"), [("1.9.1", 256), ("1.9.2", 256), ("1.10.0", 512), ("1.16.0", 512)])
def test_the_default_completion_length_is_that_of_the_version(version, tokens):
    reading = read(ARTICLE, version=version)
    assert reading.spec.carried.max_completion_tokens == tokens
    assert reading.provenance["carried.max_completion_tokens"].detail == f"default of trl {version}"


def test_a_file_gives_line_and_file_of_every_setting_it_says(tmp_path):
    path = recipe(tmp_path, "num_generations: 6\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 2\n")
    origin = read(path).provenance["rollout.completions_per_prompt"]
    assert (origin.key, origin.file, origin.line) == ("num_generations", str(path), 1)


def test_a_derived_field_says_its_formula():
    detail = read(ARTICLE).provenance["rollout.prompts_per_rollout"].detail
    assert "per_device_train_batch_size 4 x num_processes 3" in detail


def test_yaml_reads_1e_minus_6_as_text_and_trl_as_a_number(tmp_path):
    path = recipe(tmp_path, "learning_rate: 1e-6\nnum_generations: '6'\nper_device_train_batch_size: 6\n")
    reading = read(path)
    assert reading.spec.carried.learning_rate == 1e-6
    assert reading.spec.rollout.completions_per_prompt == 6


@pytest.mark.parametrize(
    "setting",
    [
        "num_generations: eight",
        "num_generations: 8.0",
        "num_generations: true",
        "num_generations: null",
        "learning_rate: fast",
        "learning_rate: .nan",
        "eval_strategy: no",
        "optim: adamwfused",
        "bf16: 2",
        "loss_type: 3",
        "accelerator_config: [1]",
        "logging_strategy: none",
        "save_strategy: no",
        "hub_strategy: never",
        "log_level: loud",
        "debug: x",
        "env: null",
        "parallelism_config: text",
        "liger_kernel_config: '{\"a\": 1}'",
        "reward_weights: auto",
        "pad_to_multiple_of: '1.5'",
        "include_num_input_tokens_seen: some",
        "include_num_input_tokens_seen: all",
    ],
)
def test_a_value_of_the_wrong_kind_is_a_finding_with_its_line(tmp_path, setting):
    path = recipe(tmp_path, f"gradient_accumulation_steps: 2\n{setting}\n")
    (finding,) = read(path).findings
    assert (finding.code, finding.where[0].line, finding.where[0].file) == ("BB-TRL-004", 2, str(path))


@pytest.mark.parametrize("setting", ["eval_steps: None", "delta: 'null'", "parallelism_config: none"])
def test_a_text_for_no_value_is_null_in_a_recipe_since_1_6(tmp_path, setting):
    path = recipe(tmp_path, f"{setting}\n")
    key = setting.partition(":")[0]
    assert (codes(read(path, version="1.6.0")), read(path, version="1.6.0").native[key]) == ([], None)
    assert codes(read(path, version="1.5.1")) == ["BB-TRL-004"]


@pytest.mark.parametrize(("native", "bound"), [(-1, 0.0), (-0.5, 0.0), (0, 0.0), (0.2, 0.2)])
def test_a_bound_of_gradients_that_is_not_above_0_is_off(native, bound):
    reading = read({**ARTICLE, "max_grad_norm": native})
    assert (reading.verdict, reading.spec.carried.max_gradient_norm) == ("valid", bound)


def test_the_tokens_that_are_counted_are_a_word_in_a_constructed_config_alone():
    assert codes(read({**ARTICLE, "include_num_input_tokens_seen": "all"})) == []
    assert codes(read(["trl", "grpo", "--include_num_input_tokens_seen", "all"])) == ["BB-TRL-004"]


def test_an_integer_in_quotes_is_refused_in_a_dict_because_GRPOConfig_does_not_convert():
    assert codes(read({**ARTICLE, "num_generations": "6"})) == ["BB-TRL-004"]


def test_an_unknown_key_is_a_finding_that_names_the_nearest_key():
    others = {key: value for key, value in ARTICLE.items() if key != "num_generations"}
    finding = next(one for one in read({**others, "num_generation": 6}).findings if one.code == "BB-TRL-003")
    assert finding.fixes[0].text == "write num_generations"


def test_a_key_that_is_said_already_is_not_suggested_for_an_unknown_one():
    (finding,) = read({**ARTICLE, "num_generation": 6}).findings
    assert finding.code == "BB-TRL-003"
    assert [fix.text for fix in finding.fixes] == ["remove num_generation"]


def test_a_removed_key_names_what_says_it_now():
    (finding,) = read({**ARTICLE, "torch_dtype": "bfloat16"}).findings
    assert finding.fixes[0].text == "use dtype"


def test_an_unknown_key_leaves_the_batch_readable():
    assert read({**ARTICLE, "max_prompt_length": 512}).spec is not None


def test_an_unknown_version_fails_closed_and_names_the_known_ones():
    reading = read(ARTICLE, version="0.13.0")
    assert reading.spec is None
    assert codes(reading) == ["BB-TRL-002"]
    assert reading.findings[0].undecided  # its text alone is no error of the settings
    assert ">=0.15" in reading.findings[0].message


@pytest.mark.parametrize(("micro", "accumulation", "group", "world"), [(1, 1, 2, 4), (4, 2, 8, 3)])
def test_under_0_14_each_device_repeats_its_prompts_and_the_answer_is_conditional(micro, accumulation, group, world):
    settings = {MICRO: micro, ACCUMULATION: accumulation, GENERATIONS: group}
    reading = read(settings, world=world, version="0.14.0")
    prompts = micro * accumulation * world
    sizes = reading.condition.sizes
    assert (sizes.prompts, sizes.per_prompt, sizes.step) == (prompts, group, prompts * group)
    assert reading.condition.supposed.startswith("trl 0.14.0 trains as")
    assert read(settings, world=world, version="0.15.0").condition is None


def test_under_0_14_an_error_of_the_next_releases_is_none_where_sizes_are_unknown_either():
    reading = read({GENERATIONS: "many", MICRO: 4}, version="0.14.0")
    assert reading.spec is None
    assert reading.condition is not None
    assert read({GENERATIONS: "many", MICRO: 4}, version="0.15.0").condition is None


def test_a_newer_version_is_read_as_the_newest_with_a_warning():
    reading = read(ARTICLE, version="1.17.0")
    assert (reading.framework_version, reading.spec) == ("1.16.0", read(ARTICLE, version="1.16.0").spec)
    (found,) = reading.findings
    assert (found.code, found.severity) == ("BB-TRL-002", "warning")
    assert found.message == "trl 1.17.0 is newer than the newest version known here and is read as 1.16.0"


def test_what_an_installed_newer_version_declares_otherwise_is_named(tmp_path, monkeypatch):
    known = declared.known()
    fields = {**known, "brand_new": "True", "num_generations": "16"}
    del fields["beta"]
    lines = [
        f"    {name}: int" + ("" if value == "no default" else f" = field(default={value}, metadata=None)")
        for name, value in fields.items()
    ]
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "grpo_config.py").write_text("class GRPOConfig:\n" + "\n".join(lines), encoding="utf-8")
    monkeypatch.setattr(declared, "folder_of", lambda package: tmp_path)
    monkeypatch.setattr("batchbridge_trl.config.installed", lambda distribution: "1.17.0")
    (found,) = read(ARTICLE, version="1.17.0").findings
    assert "adds brand_new (True); no longer has beta; has other defaults for num_generations (16, was 8)" in (
        found.message
    )


def test_a_missing_world_size_leaves_the_verdict_undecided():
    reading = read(ARTICLE, world=None)
    assert reading.verdict == "undecided"
    assert reading.spec is None


@pytest.mark.parametrize(
    "place", ["accelerate.yaml", "accelerate_configs/zero2.yaml", "../accelerate_configs/ddp.yaml"]
)
def test_the_world_size_comes_from_the_accelerate_file_beside_the_recipe(tmp_path, place):
    folder = tmp_path / "model"
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    (folder / place).write_text("debug: false\nnum_processes: 6  # one node\n")
    path = recipe(folder, "num_generations: 6\n")
    origin = read(path, world=None).provenance["topology.world_size"]
    assert (origin.value, origin.line) == (6, 2)


def test_accelerate_files_that_disagree_decide_nothing(tmp_path):
    for name, size in (("accelerate_a.yaml", 4), ("accelerate_b.yaml", 8)):
        (tmp_path / name).write_text(f"num_processes: {size}\n")
    reading = read(recipe(tmp_path, "num_generations: 6\n"), world=None)
    assert "disagree" in reading.findings[0].message


def test_num_processes_in_a_recipe_is_accelerates_and_no_unknown_key(tmp_path):
    reading = read(recipe(tmp_path, "num_generations: 8\nnum_processes: 4\n"), world=None)
    assert reading.spec.topology.world_size == 4


def test_only_one_of_the_exclusive_settings_is_written():
    values = TrlAdapter().write(read(ARTICLE).spec).values
    assert "generation_batch_size" in values
    assert "steps_per_generation" not in values


def test_the_python_snippet_is_a_call_of_GRPOConfig_with_the_written_values():
    written = TrlAdapter().write(read(ARTICLE).spec)
    call = ast.parse(written.text["python"]).body[-1].value
    assert {word.arg: ast.literal_eval(word.value) for word in call.keywords} == dict(written.values)


def test_every_problem_of_an_unwritable_spec_is_named():
    spec = read(ARTICLE).spec.replace(
        **{"rollout.group_filter": "drop_zero_variance", "order.last_rollout": "wrap", "staleness.mode": "bounded"}
    )
    with pytest.raises(CannotWrite) as caught:
        TrlAdapter().write(spec)
    assert [problem.reason.split(" = ")[0] for problem in caught.value.problems] == [
        "rollout.group_filter",
        "staleness.mode",
        "order.last_rollout",
    ]


def test_a_step_that_the_devices_cannot_share_is_refused_with_the_nearest_sizes():
    spec = read(ARTICLE).spec.replace(**{"optimizer_step.completions_per_step": 25})
    with pytest.raises(CannotWrite, match="fix: 24 or 36"):
        TrlAdapter().write(spec)


numbers = st.floats(0, 10, allow_nan=False)


@st.composite
def configurations(draw):
    micro, world, group = draw(st.integers(1, 8)), draw(st.integers(1, 8)), draw(st.integers(2, 8))
    steps = group * draw(st.integers(1, 3))
    values = {
        "per_device_train_batch_size": micro,
        "num_generations": group,
        "gradient_accumulation_steps": draw(st.sampled_from([steps, 1, 2, 3, 2 * steps])),
        "loss_type": draw(st.sampled_from(["grpo", "dapo", "bnpo", "dr_grpo", "luspo", "sapo", "cispo", "vespo"])),
    }
    key = draw(st.sampled_from(["steps_per_generation", "generation_batch_size"]))
    values[key] = steps if key == "steps_per_generation" else steps * micro * world
    optional = {
        "num_iterations": st.integers(1, 3),
        "beta": st.sampled_from([0.0, 0.04]),
        "use_bias_correction_kl": st.booleans(),
        "epsilon": numbers,
        "epsilon_high": st.none() | st.sampled_from([0.28, 5.0, 0.2]),
        "delta": st.none() | st.sampled_from([1.5, 4.0]),
        "scale_rewards": st.sampled_from(["group", "batch", "none", True, False]),
        "importance_sampling_level": st.sampled_from(["token", "sequence"]),
        "entropy_coef": st.sampled_from([0.0, 0.01]),
        "shuffle_dataset": st.booleans(),
        "seed": st.integers(0, 99),
        "learning_rate": st.sampled_from([1e-6, 5e-5, 0.0, 1]),
        "lr_scheduler_type": st.sampled_from(["linear", "constant", "cosine_with_min_lr"]),
        "lr_scheduler_kwargs": st.none() | st.just({"min_lr_rate": 1e-06}),
        "warmup_steps": st.sampled_from([0, 0.1, 10, 2.5]),
        "optim": st.sampled_from(["adamw_torch", "adamw_torch_fused", "sgd", "adafactor"]),
        "max_grad_norm": numbers,
        "temperature": numbers,
        "max_completion_length": st.integers(1, 4096),
        "mask_truncated_completions": st.booleans(),
        "disable_dropout": st.booleans(),
        "bf16": st.none() | st.booleans(),
        "use_vllm": st.booleans(),
        "vllm_importance_sampling_clip_min": st.none() | st.just(0.5),
        "vllm_importance_sampling_clip_max": st.none() | st.just(2.0),
        "router_aux_loss_coef": st.none() | st.just(0.01),
    }
    values |= draw(st.fixed_dictionaries({}, optional=optional))
    values |= draw(st.sampled_from([{"max_steps": 5}, {"num_train_epochs": 2.5}, {"num_train_epochs": 1}]))
    if values["loss_type"] == "cispo":
        values["epsilon_high"] = draw(st.sampled_from([1.0, 5.0]))  # below 1: BB-TRL-093
    if values.get("lr_scheduler_type") == "cosine_with_min_lr":
        values["lr_scheduler_kwargs"] = {"min_lr_rate": 1e-06}  # without: BB-TRL-090
    if values.get("beta", 0.0):
        values |= draw(st.sampled_from([{}, {"sync_ref_model": True, "ref_model_sync_steps": 64}]))
    return values, world


@settings(max_examples=1000)
@given(configurations())
def test_what_was_read_is_read_again_from_what_was_written(configuration):
    values, world = configuration
    context = Context(framework_version="1.16.0", world_size=world)
    spec = TrlAdapter().read(Source(values=values), context).spec
    assert TrlAdapter().read(Source(values=TrlAdapter().write(spec).values), context).spec == spec


@given(configurations())
def test_the_written_recipe_says_the_written_values(configuration):
    values, world = configuration
    spec = TrlAdapter().read(Source(values=values), Context(framework_version="1.16.0", world_size=world)).spec
    written = TrlAdapter().write(spec)
    assert yaml.safe_load(written.text["yaml"]) == dict(written.values)


keys = st.sampled_from(sorted(row.key for group in TRL_GROUPS for row in group.settings)) | st.text(max_size=5)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)


@given(st.dictionaries(keys, anything, max_size=6), st.none() | st.integers(-2, 9), st.none() | st.integers(0, 50))
def test_no_input_makes_reading_or_checking_raise(values, world, prompts):
    adapter = TrlAdapter()
    reading = adapter.read(
        Source(values=values), Context(framework_version="1.12.0", world_size=world, dataset_size=prompts)
    )
    assert verdict([*reading.findings, *adapter.check(reading)]) in ("valid", "invalid", "undecided")


SIZE_KEYS = (*FIELDS.values(), "per_device_eval_batch_size", "num_generations_eval", "max_steps", "seed")
VAST = (10**400, 10**40, -(10**40), 2**64, LARGEST + 1, LARGEST, 2**31, 2095133040, 4294967291, 999983)
vast = st.sampled_from(VAST) | st.integers(LARGEST // 2, LARGEST) | st.integers()


@settings(max_examples=300)
@given(
    st.dictionaries(st.sampled_from(SIZE_KEYS), vast | st.integers(1, 64), min_size=1),
    st.none() | st.floats(),
    vast.filter(lambda size: size > 0),
    st.none() | vast.filter(lambda size: size > 0),
)
def test_no_size_however_large_takes_a_second_of_the_processor_or_makes_the_answer_unprintable(
    values, epochs, world, prompts
):
    values = {**values, "eval_strategy": "steps", **({} if epochs is None else {"num_train_epochs": epochs})}
    before = time.process_time()
    reading = batchbridge.read(values, framework="trl", version="1.16.0", world_size=world, dataset_size=prompts)
    json.dumps(reading.to_dict())
    explain("settings", reading)
    assert time.process_time() - before < 1


@pytest.mark.parametrize("key", [*SIZE_KEYS, "max_completion_length", "logging_steps"])
def test_an_integer_beyond_32_bits_is_a_finding_of_its_own_and_can_be_printed(key):
    code = "BB-TRL-004" if key == "logging_steps" else "BB-TRL-007"  # a float to TRL, and infinite
    # Python writes no integer of more than 4,300 digits.
    reading = read({**ARTICLE, key: 10**5000}, world=None if key == "num_processes" else 3)
    (finding,) = (f for f in reading.findings if not f.undecided)
    assert (finding.code, finding.where[0].key, finding.severity) == (code, key, "error")
    json.dumps(reading.to_dict())


def test_an_unknown_key_with_an_unprintable_integer_can_be_printed():
    assert "colour" in explain("settings", read({**ARTICLE, "colour": 10**5000}))


def test_an_integer_beyond_32_bits_is_found_inside_a_mapping():
    values = {**ARTICLE, "accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2**40}}}
    assert codes(read(values)) == ["BB-TRL-007"]


def test_the_largest_seed_that_numpy_takes_is_read():
    assert read({**ARTICLE, "seed": 2**32 - 1}).spec.order.seed == 2**32 - 1


@pytest.mark.parametrize("adapter", [TrlAdapter(), OpenR1Adapter()], ids=["trl", "open_r1"])
def test_keys_that_are_no_text_are_findings_and_the_rest_is_read(adapter):
    source = Source(values={**ARTICLE, 1: 2, None: 3, ("a",): 4})
    assert adapter.detect(source) == adapter.detect(Source(values=ARTICLE))
    reading = adapter.read(source, Context(framework_version="1.16.0", world_size=3))
    assert [(finding.code, finding.where[0].key) for finding in reading.findings] == [
        ("BB-TRL-008", "1"),
        ("BB-TRL-008", "None"),
        ("BB-TRL-008", "('a',)"),
    ]
    assert reading.spec.rollout.completions_per_prompt == 6


def test_no_rule_is_applied_to_the_default_of_a_size_that_could_not_be_read():
    reading = read({**ARTICLE, "num_generations": "six"})
    assert TrlAdapter().check(reading) == []


@pytest.mark.parametrize(
    ("values", "path", "expected"),
    [
        ({}, "loss.policy.aggregation", ("loss_type", "dapo")),
        ({}, "rollout.truncated_completions", ("mask_truncated_completions", False)),
        ({}, "objective.nonfinite_step", ("fp16", False)),
        ({"loss_type": "grpo"}, "loss.policy.aggregation", ("loss_type", "grpo")),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, "objective.clip_high", ("epsilon_high", 5.0)),
        ({"loss_type": "cispo"}, "objective.clip_high", ("epsilon", 0.2)),
        ({"beta": 0.1, "sync_ref_model": True}, "carried.reference_sync_steps", ("ref_model_sync_steps", 512)),
        ({"scale_rewards": False}, "advantage.scale", ("scale_rewards", False)),
    ],
)
def test_a_provenance_shows_the_native_value_not_its_meaning(values, path, expected):
    origin = read({**ARTICLE, **values}).provenance[path]
    assert (origin.key, origin.value) == expected


@pytest.mark.parametrize("module", ["batchbridge_trl", "batchbridge_open_r1"])
def test_importing_a_plugin_module_imports_neither_yaml_nor_a_framework(module):
    forbidden = "{'yaml', 'torch', 'trl', 'transformers', 'pydantic'}"
    code = f"import sys, {module}; sys.exit(', '.join({forbidden} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr.strip() == ""
    )


def test_a_preference_recipe_is_not_judged_as_a_broken_grpo_recipe() -> None:
    dpo = {"beta": 0.1, "max_seq_length": 2048, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 16}
    (found,) = batchbridge.check({**dpo, "learning_rate": 5e-7, "dpo_loss_type": "dpo_norm"}).findings
    assert (found.code, found.undecided) == ("BB-TRL-081", True)
    assert found.message.startswith("preference tuning (DPO: beta, and no rewards), which has no rollouts")
    grpo = batchbridge.check({**dpo, "reward_funcs": ["accuracy"]}, version="1.16.0", framework="trl", world_size=8)
    assert "BB-TRL-003" in {finding.code for finding in grpo.findings}


def test_settings_of_fsdp_in_a_file_that_nobody_reads_leave_their_refusal_open():
    values = {"fsdp": "full_shard", "fsdp_config": "fsdp.json", "per_device_train_batch_size": 8, "bf16": True}
    read = TrlAdapter().read(Source(values=values), Context(framework_version="1.16.0", world_size=2))
    told = {one.name: one for one in TrlAdapter().enforcement(read).obstacles}
    assert not told["fsdp_xla"].certain
