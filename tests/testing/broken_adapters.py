"""The toy adapter with one defect each. `breaks`: the law (a method of the contract) and its arguments; `message`: what
the law says about the defect."""

from __future__ import annotations

import dataclasses
import itertools
from fractions import Fraction

from toy_adapter import DEFAULTS, ToyAdapter

from batchbridge.contract.enforcement import Enforcement, Obstacle
from batchbridge.contract.reading import Written
from batchbridge.errors import CannotWrite, Problem
from batchbridge.meaning.findings import Finding, Fix, Where

_counter = itertools.count()


def _edited(method, **fields):
    """A `read` whose reading has other fields; callables get the reading."""

    def read(self, source, context):
        reading = method(self, source, context)
        values = {name: value(reading) if callable(value) else value for name, value in fields.items()}
        return dataclasses.replace(reading, **values)

    return read


def _without(key):
    def provenance(reading):
        return {path: origin for path, origin in reading.provenance.items() if path != key}

    return provenance


def without_provenance(key):
    """A `read` that says nothing about one field."""
    return _edited(ToyAdapter.read, provenance=_without(key))


def _rows(**fields):
    def native_steps(self, reading, dataset_size, response_tokens):
        for step in ToyAdapter.native_steps(self, reading, dataset_size, response_tokens):
            yield dataclasses.replace(step, rows=tuple(dataclasses.replace(row, **fields) for row in step.rows))

    return native_steps


def _finding(**fields):
    def check(self, reading):
        plain = Finding(
            "BB-TOY-010", "error", "construction", "step is odd", (Where("step", 8),), native="AssertionError"
        )
        return [*ToyAdapter.check(self, reading), dataclasses.replace(plain, **fields)]

    return check


def _with_fix(findings, fix):
    return [dataclasses.replace(finding, fixes=(fix,)) for finding in findings]


def _broken(name, breaks, message, **methods):
    return type(name, (ToyAdapter,), {"breaks": breaks, "message": message, "__module__": __name__, **methods})


def _strict_read(self, source, context):
    int(source.values.get("step", 1))
    return ToyAdapter.read(self, source, context)


def _careless_write(self, spec, framework_version=None):
    try:
        return ToyAdapter.write(self, spec)
    except CannotWrite:
        return ToyAdapter.write(self, spec.replace(**{"order.last_rollout": "drop"}))


def _seeded_write(self, spec, framework_version=None):
    return ToyAdapter.write(self, spec if spec.order.seed is not None else spec.replace(**{"order.seed": 0}))


def _rounding_write(self, spec, framework_version=None):
    return ToyAdapter.write(self, spec.replace(**{"carried.learning_rate": 0.5}))


def _forgetting_write(self, spec, framework_version=None):
    return ToyAdapter.write(self, spec.replace(open_terms=()))


def _mute_write(self, spec, framework_version=None):
    if spec.open_terms:
        raise CannotWrite(self.framework, [Problem(("open_terms",), "terms without a word")])
    return ToyAdapter.write(self, spec)


def _empty_refusal(self, spec, framework_version=None):
    raise CannotWrite(self.framework, [])


def _unfaithful(self, spec, framework_version=None):
    written = ToyAdapter.write(self, spec)
    return Written(values={**written.values, "rate": 0.25}, text=written.text)


def _mutating_read(self, source, context):
    source.values.pop("gone", None)
    source.values["gone"] = next(_counter)
    values = {key: value for key, value in source.values.items() if key != "gone"}
    return ToyAdapter.read(self, dataclasses.replace(source, values=values), context)


def _deaf_to(field):
    def read(self, source, context):
        return ToyAdapter.read(self, source, dataclasses.replace(context, **field))

    return read


def _forgetful(self, source, context):
    reading = ToyAdapter.read(self, source, context)
    return dataclasses.replace(reading, findings=tuple(f for f in reading.findings if f not in source.problems))


def _eager(self, source, context):
    reading = ToyAdapter.read(self, source, context)
    return dataclasses.replace(reading, findings=(*reading.findings, *ToyAdapter.check(self, reading)))


def _rash(self, reading):
    return Enforcement(evidence="proven")


def _wordless(self, reading):
    return Enforcement(obstacles=(Obstacle(name="something", reason="it is so", remedy=""),))


def _numbered(self, reading, dataset_size, response_tokens):
    for step in ToyAdapter.native_steps(self, reading, dataset_size, response_tokens):
        yield dataclasses.replace(step, index=step.index + 1)


def _half_steps(self, reading, dataset_size, response_tokens):
    for step in ToyAdapter.native_steps(self, reading, dataset_size, response_tokens):
        yield dataclasses.replace(step, rows=step.rows[:4])


def _moody_steps(self, reading, dataset_size, response_tokens):
    moved = next(_counter) % 2
    for step in ToyAdapter.native_steps(self, reading, dataset_size, response_tokens):
        yield dataclasses.replace(step, rows=step.rows[::-1] if moved else step.rows)


def _pathless(reading):
    return {**reading.provenance, "rollout.batch_size": next(iter(reading.provenance.values()))}


def _canonical(reading):
    origin = dataclasses.replace(reading.provenance["loss.policy.aggregation"], value="token_mean")
    return {**reading.provenance, "loss.policy.aggregation": origin}


def _numbered_otherwise(reading):
    origin = dataclasses.replace(reading.provenance["topology.world_size"], value=4711)
    return {**reading.provenance, "topology.world_size": origin}


def _other_keys(reading):
    return {
        path: origin if origin.origin == "default" else dataclasses.replace(origin, keys=("file",))
        for path, origin in reading.provenance.items()
    }


def _of_another_key(reading):
    if "carried.learning_rate" not in reading.provenance:
        return reading.provenance
    origin = dataclasses.replace(reading.provenance["carried.learning_rate"], keys=("step",), value=8)
    return {**reading.provenance, "carried.learning_rate": origin}


def _careless_keys(self, source, context):
    known = {key: value for key, value in source.values.items() if key in ("devices", *DEFAULTS)}
    return ToyAdapter.read(self, dataclasses.replace(source, values=known), context)


def _silent(reading):
    return {path: dataclasses.replace(origin, detail="") for path, origin in reading.provenance.items()}


def _vague(reading):
    return dataclasses.replace(reading.behaviour, source="")


def _objects(reading):
    return {path: dataclasses.replace(origin, value=object()) for path, origin in reading.provenance.items()}


def _strict_prompts(self, source, context):
    int(source.values.get("prompts", 1))
    return ToyAdapter.read(self, source, context)


READ = ToyAdapter.read


class Moved(ToyAdapter):
    """Writes the text of another run for some seeds."""

    def write(self, spec, framework_version=None):
        return ToyAdapter.write(self, spec.replace(**{"order.seed": 0}) if spec.order.seed == 5 else spec)


ALL = [
    _broken("BadName", ["test_its_framework_has_a_plain_name"], "lower case", framework="Toy Framework"),
    _broken("KnowsAll", ["test_the_unknown_version_is_outside_its_versions"], "is a known one", versions=">=1"),
    _broken(
        "Overconfident", ["test_detect_gives_a_share_of_certainty", "valid"], "not 0 to 1", detect=lambda s, x: 2.0
    ),
    _broken("Blind", ["test_detect_recognises_its_own", "valid"], "0 for a valid", detect=lambda s, x: 0.0),
    _broken(
        "MoodyDetect",
        ["test_detect_says_the_same_twice_and_changes_nothing", "valid"],
        "detect varies",
        detect=lambda s, x: 1 / (2 + next(_counter)),
    ),
    _broken("NanDetect", ["test_detect_takes_any_input", "empty"], "not 0 to 1", detect=lambda s, x: float("nan")),
    _broken("SureOfAll", ["test_detect_is_less_sure_of_others", "foreign"], "as sure", detect=lambda s, x: 0.5),
    _broken("Refuses", ["test_a_valid_case_is_valid", "valid"], "verdict invalid", check=_finding()),
    _broken(
        "Misread",
        ["test_a_valid_case_means_its_spec", "valid"],
        "order.seed: wanted 0, got 7",
        read=_edited(READ, spec=lambda r: r.spec.replace(**{"order.seed": 7})),
    ),
    _broken(
        "OtherName",
        ["test_a_reading_names_its_framework_and_version", "valid"],
        "another's",
        read=_edited(READ, framework="verl"),
    ),
    _broken("Mutating", ["test_reading_twice_gives_the_same", "valid"], "changed its source", read=_mutating_read),
    _broken(
        "DriftingType",
        ["test_a_spec_survives_json", "valid"],
        "carried.dropout",
        read=_edited(READ, spec=lambda r: r.spec.replace(**{"carried.dropout": ("on",)})),
    ),
    _broken(
        "Gap",
        ["test_every_field_that_is_not_the_schemas_default_has_a_provenance", "valid"],
        "no provenance for .*order.seed",
        read=_edited(READ, provenance=_without("order.seed")),
    ),
    _broken(
        "GapWithoutDefault",
        ["test_every_field_that_is_not_the_schemas_default_has_a_provenance", "valid"],
        "no provenance for .*loss.policy.aggregation",
        read=_edited(READ, provenance=_without("loss.policy.aggregation")),
    ),
    _broken(
        "OurValues",
        ["test_a_provenance_has_the_native_value", "valid"],
        "loss = 'token_mean', not 'mean'",
        read=_edited(READ, provenance=_canonical),
    ),
    _broken(
        "Invented",
        ["test_every_provenance_is_of_a_field", "valid"],
        "batch_size",
        read=_edited(READ, provenance=_pathless),
    ),
    _broken(
        "Silent",
        ["test_every_provenance_says_where_from", "valid"],
        "no detail",
        read=_edited(READ, provenance=_silent),
    ),
    _broken(
        "Vague", ["test_a_behaviour_is_told_in_full", "valid"], "source is empty", read=_edited(READ, behaviour=_vague)
    ),
    _broken(
        "AnyVersion",
        ["test_an_unknown_version_fails_closed", "valid"],
        "an unknown version is valid",
        read=_deaf_to({"framework_version": "2.0"}),
    ),
    _broken(
        "ForgetsToWarn",
        ["test_a_version_newer_than_the_newest_is_read_as_it_with_one_warning", "valid"],
        "0 findings more",
        newest_version="2.0",
        read=_deaf_to({"framework_version": "2.0"}),
    ),
    _broken(
        "GuessesWorld",
        ["test_a_missing_world_size_leaves_it_undecided", "valid"],
        "verdict valid",
        read=_deaf_to({"world_size": 8}),
    ),
    _broken(
        "ForgetsWarnings",
        ["test_what_the_loader_found_is_kept", "valid"],
        "are lost",
        read=lambda s, source, x: READ(
            s, dataclasses.replace(source, problems=tuple(p for p in source.problems if p.severity == "error")), x
        ),
    ),
    _broken(
        "BlindToFiles",
        ["test_detect_recognises_its_own", "valid"],
        "detect is 0 for a valid case in a file",
        detect=lambda s, source: 0.0 if source.path else ToyAdapter.detect(s, source),
    ),
    _broken(
        "OtherNumber",
        ["test_a_provenance_has_the_native_value", "of devices"],
        "devices = 4711, not 2",
        read=_edited(READ, provenance=_numbered_otherwise),
    ),
    _broken("Forgetful", ["test_what_the_loader_found_is_kept", "valid"], "are lost", read=_forgetful),
    _broken("NoReading", ["test_no_whole_input_makes_it_raise", "empty"], "read gave a dict", read=lambda s, x, c: {}),
    _broken("Strict", ["test_no_value_makes_it_raise", "text"], "prompts = text: ValueError", read=_strict_prompts),
    _broken(
        "StrictUnset",
        ["test_no_value_of_an_unset_key_makes_it_raise", "empty text"],
        "step = empty text",
        read=_strict_read,
    ),
    _broken(
        "BadCodeInContext", ["test_no_context_makes_it_raise", "valid"], "is not like BB101", check=_finding(code="E1")
    ),
    _broken(
        "Lenient", ["test_an_invalid_case_is_invalid_with_its_codes", "invalid"], "expected", check=lambda s, r: []
    ),
    _broken(
        "Guesses",
        ["test_an_undecided_case_is_undecided_for_its_reason", "undecided"],
        "verdict valid",
        read=_edited(ToyAdapter.read, findings=()),
    ),
    _broken("BadCode", ["test_findings_are_well_formed", "invalid"], "is not like BB101", check=_finding(code="TOY-1")),
    _broken(
        "Placeless", ["test_errors_name_a_place_in_the_users_own_keys", "invalid"], "no key", check=_finding(where=())
    ),
    _broken(
        "OurWords",
        ["test_errors_name_a_place_in_the_users_own_keys", "invalid"],
        "canonical",
        check=_finding(where=(Where("rollout.prompts_per_rollout", 4),)),
    ),
    _broken(
        "Helpless",
        ["test_errors_offer_a_fix_or_what_the_framework_says", "invalid"],
        "neither a fix",
        check=_finding(native=None),
    ),
    _broken(
        "MoodyCheck",
        ["test_check_says_the_same_twice_and_changes_nothing", "valid"],
        "check varies",
        check=lambda s, r: [Finding("BB-TOY-011", "note", "never", f"note {next(_counter)}")],
    ),
    _broken("Eager", ["test_read_leaves_the_rules_to_check", "invalid"], "and again by check", read=_eager),
    _broken(
        "Unfaithful", ["test_what_was_read_can_be_written_and_read_again", "valid"], "learning_rate", write=_unfaithful
    ),
    _broken(
        "OfAnotherVersion",
        ["test_what_is_written_names_its_version", "valid"],
        "another version than asked",
        write=lambda s, x, v=None: Written(values={"a": 1}, text={"toy": "a 1"}, framework_version="0.9"),
    ),
    _broken(
        "Textless",
        ["test_writing_gives_text_and_native_values", "valid"],
        "no text",
        write=lambda s, x, v=None: Written(values={"a": 1}, text={}),
    ),
    _broken(
        "Careless",
        ["test_a_changed_field_is_written_faithfully_or_refused", ("order.last_rollout", "pad")],
        "written as something else",
        write=_careless_write,
    ),
    _broken(
        "FillsASize",
        ["test_a_changed_field_is_written_faithfully_or_refused", ("order.seed", None)],
        "written as something else: order.seed: wanted None, got 0",
        write=_seeded_write,
    ),
    _broken(
        "DropsOpenTerms",
        ["test_a_term_that_it_has_no_name_for_is_refused_by_name", "valid"],
        "dropped silently",
        write=_forgetting_write,
    ),
    _broken(
        "RefusesOpenTermsWithoutAName",
        ["test_a_term_that_it_has_no_name_for_is_refused_by_name", "valid"],
        "refused without naming",
        write=_mute_write,
    ),
    _broken(
        "ReplacesTheKnown",
        ["test_a_changed_field_is_written_faithfully_or_refused", ("carried.learning_rate", 3.0)],
        "written as something else: carried.learning_rate: wanted 3.0, got 0.5",
        write=_rounding_write,
    ),
    _broken(
        "EmptyRefusal", ["test_what_cannot_be_said_is_refused", "unwritable"], "without a problem", write=_empty_refusal
    ),
    _broken(
        "Anything", ["test_what_cannot_be_said_is_refused", "unwritable"], "listed as unwritable", write=_careless_write
    ),
    _broken(
        "Twice",
        ["test_native_steps_place_every_completion_once_per_pass", "valid"],
        "more than once",
        native_steps=_rows(sample=0),
    ),
    _broken(
        "NoSteps",
        ["test_native_steps_train_a_whole_rollout_in_whole_steps", "valid"],
        "no step at all",
        native_steps=lambda s, reading, size, tokens: iter(()),
    ),
    _broken(
        "FewRows",
        ["test_native_steps_train_a_whole_rollout_in_whole_steps", "valid"],
        "4 completions of 8 in the first pass",
        native_steps=_half_steps,
    ),
    _broken(
        "Promises",
        ["test_an_adapter_without_running_trainers_enforces_nothing", "valid"],
        "`enforces` promises advantage.baseline",
        enforces=lambda s, path, value: path == "advantage.baseline",
    ),
    _broken(
        "FarRank", ["test_native_steps_stay_inside_the_run", "valid"], "outside the world", native_steps=_rows(rank=4)
    ),
    _broken(
        "FloatWeights",
        ["test_native_weights_are_exact_or_left_open", "valid"],
        "neither a Fraction",
        native_steps=_rows(weight=0.5),
    ),
    _broken(
        "WeighsNothing",
        ["test_a_completion_without_tokens_weighs_nothing", "valid"],
        "no token, but a weight",
        native_steps=_rows(weight=Fraction(1)),
    ),
    _broken("FromOne", ["test_native_steps_are_counted_from_zero", "valid"], "indices", native_steps=_numbered),
    _broken(
        "MoodySteps",
        ["test_native_steps_are_the_same_twice", "valid"],
        "native_steps varies",
        native_steps=_moody_steps,
    ),
    _broken(
        "Unplaced",
        ["test_a_provenance_names_file_and_line", "valid"],
        "stands in a file, and its origin is argument",
        read=lambda s, source, x: READ(s, dataclasses.replace(source, lines={}), x),
    ),
    _broken(
        "GivesNoPlaces",
        ["test_a_provenance_names_file_and_line", "valid"],
        "`given` has the place of no setting",
        read=_edited(READ, given={}),
    ),
    _broken(
        "OffByOne",
        ["test_a_provenance_names_file_and_line", "valid"],
        "recipe.yaml:4, not",
        read=lambda s, source, x: READ(
            s, dataclasses.replace(source, lines={key: line + 1 for key, line in source.lines.items()}), x
        ),
    ),
    _broken(
        "NamesNoKeys",
        ["test_a_value_that_a_script_leaves_open_leaves_what_comes_from_it_open", "valid"],
        "prompts is open, and the reading is valid",
        read=_edited(READ, provenance=_other_keys),
    ),
    _broken(
        "NamesAnotherKey",
        ["test_the_key_that_a_provenance_names_moves_its_field"],
        "stays as it is whatever its key says: .*carried.learning_rate, by its provenance step",
        read=_edited(READ, provenance=_of_another_key),
    ),
    _broken(
        "WritesOneRate",
        ["test_what_another_value_means_is_written_back", "valid"],
        "with rate = .* it is written as something else: carried.learning_rate",
        write=_rounding_write,
    ),
    _broken(
        "TakesAnyKey",
        ["test_a_key_that_is_no_setting_is_found", "valid"],
        "is not a setting, and nothing says so",
        read=_careless_keys,
    ),
    _broken(
        "OneWordForAll",
        ["test_other_settings_mean_what_is_written_down"],
        "loss.policy.aggregation: wanted 'token_sum', got 'token_mean'",
        read=_edited(READ, spec=lambda r: r.spec and r.spec.replace(**{"loss.policy.aggregation": "token_mean"})),
    ),
    _broken(
        "WorldSizeOfTheFile",
        ["test_a_world_size_against_the_settings_is_an_error", "of devices"],
        "5 devices were asked for, and another number is valid",
        read=_deaf_to({"world_size": None}),
    ),
    _broken(
        "SilentInFiles",
        ["test_an_invalid_case_is_invalid_with_its_codes", "invalid"],
        "in a file .*, and else",
        read=lambda s, source, x: READ(s, dataclasses.replace(source, values={}) if source.path else source, x),
    ),
    _broken(
        "WarnsWithoutMending",
        ["test_a_fix_fixes", "warned"],
        "'rate = 0.25' .* does not fix it",
        check=_finding(severity="warning", phase="never", fixes=(Fix("rate = 0.25", {"rate": 0.25}),)),
    ),
    _broken(
        "BreaksAnother",
        ["test_a_fix_fixes", "warned"],
        "BB-TOY-020: each fix breaks another rule",
        check=lambda s, r: _with_fix(ToyAdapter.check(s, r), Fix("rate = 1", {"rate": 1, "step": 7})),
    ),
    _broken(
        "StrangeFix",
        ["test_a_fix_says_what_it_changes", "warned"],
        "'rate = 1' changes what is not a setting: .'rat'",
        check=lambda s, r: _with_fix(ToyAdapter.check(s, r), Fix("rate = 1", {"rate": 1, "rat": 1})),
    ),
    _broken(
        "OtherFix",
        ["test_a_fix_says_what_it_changes", "warned"],
        "'rate = 7' says something else than its changes",
        check=lambda s, r: _with_fix(ToyAdapter.check(s, r), Fix("rate = 7", {"rate": 1})),
    ),
    _broken(
        "FixInWords",
        ["test_a_fix_says_what_it_changes", "warned"],
        "'rate = 1' names a setting, and `changes` does not",
        check=lambda s, r: _with_fix(ToyAdapter.check(s, r), Fix("rate = 1")),
    ),
    _broken(
        "ChecksOnly",
        ["test_a_defect_that_is_checked_is_explained", "warned"],
        "behaviour.defects leaves out BB-TOY-020",
        read=_edited(READ, behaviour=lambda r: r.behaviour and dataclasses.replace(r.behaviour, defects=())),
    ),
    _broken(
        "WrongFix",
        ["test_a_fix_fixes", "invalid"],
        "does not fix it",
        check=_finding(fixes=(Fix("step = 7", {"step": 7}),)),
    ),
    _broken(
        "OnlyDefaults",
        ["test_a_written_text_is_read_as_what_was_written", "valid"],
        "the yaml is read as something else",
        write=lambda s, x, v=None: dataclasses.replace(ToyAdapter.write(s, x, v), text={"yaml": "samples: 4\n"}),
    ),
    _broken("Wordless", ["test_enforcement_is_told_in_full", "valid"], "no remedy", enforcement=_wordless),
    _broken(
        "Rash",
        ["test_an_adapter_without_running_trainers_enforces_nothing", "valid"],
        "nothing attaches, and it is not refused",
        enforcement=_rash,
    ),
    _broken("OwnsAll", ["test_strangers_are_not_owned"], "owns NoneType", owns=lambda s, x: True),
    _broken("NotJson", ["test_a_reading_is_json", "valid"], "JSON", read=_edited(READ, provenance=_objects)),
]
OnlyDefaults = next(broken for broken in ALL if broken.__name__ == "OnlyDefaults")

LAWS_WITHOUT_ONE = {
    "test_every_rule_has_a_case",  # about the author's tests
    "test_every_setting_decides_something_or_is_said_to_decide_nothing",  # has a file of tests
    "test_every_word_of_a_row_has_a_case_with_its_spec",  # about the author's tests; these two have tests of their own
    "test_every_default_has_a_case_with_its_spec",
    "test_a_dotted_key_laid_over_its_group_wins",  # these two have tests of their own
    "test_a_setting_that_is_inherited_names_its_own_file",
    "test_a_real_configuration_is_read_and_written_back",  # of the author's own folder; these two have a test
    "test_the_folder_of_real_configurations_has_a_valid_one",
    "test_it_is_made_without_arguments",  # a class that needs arguments fails every law
    "test_its_versions_are_specifiers",  # raises InvalidSpecifier itself
    "test_it_is_tested_with_valid_and_invalid_cases",  # about the author's tests
    "test_reading_imports_no_framework",  # has a test of its own
    "test_an_invalid_case_is_not_enforced",  # its errors are obstacles, whatever an adapter says
    "test_every_refusal_has_a_configuration",  # these three have tests of their own
    "test_what_is_refused_is_not_called_enforced",
    "test_a_refusal_is_not_told_of_everything",
}
