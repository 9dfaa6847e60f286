"""The tools that authors of adapters build with: `batchbridge.kit` has the core's words, its modules the tools.

An adapter imports `batchbridge`, this package and modules of it, and nothing else of BatchBridge. Everything here is
loaded when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # read by `loader`, too: what is imported as itself is offered
    from batchbridge.contract.attachment import Request as Request
    from batchbridge.contract.error_text import Ask as Ask
    from batchbridge.contract.error_text import ErrorText as ErrorText
    from batchbridge.contract.error_text import Numbers as Numbers
    from batchbridge.contract.evidence import Code as Code
    from batchbridge.contract.evidence import Package as Package
    from batchbridge.contract.native_check import NativeCheck as NativeCheck
    from batchbridge.contract.outside import SharedSetting as SharedSetting
    from batchbridge.contract.reading import BuiltTrainer as BuiltTrainer
    from batchbridge.contract.reading import Condition as Condition
    from batchbridge.contract.reading import Context as Context
    from batchbridge.contract.reading import Defect as Defect
    from batchbridge.contract.reading import NativeRow as NativeRow
    from batchbridge.contract.reading import NativeStep as NativeStep
    from batchbridge.contract.trial import TRIAL_FIGURES as TRIAL_FIGURES
    from batchbridge.contract.trial import Trial as Trial
    from batchbridge.contract.trial import TrialCommand as TrialCommand
    from batchbridge.kit.objectives import KL_ESTIMATORS as KL_ESTIMATORS
    from batchbridge.kit.objectives import Surrogate as Surrogate
    from batchbridge.kit.objectives import clip_bounds as clip_bounds
    from batchbridge.kit.packed_batches import partition_packed as partition_packed
    from batchbridge.kit.step_cost import StepCost as StepCost
    from batchbridge.kit.step_cost import partition_by_cost as partition_by_cost
    from batchbridge.ledger import digest_floats as digest_floats
    from batchbridge.ledger import fingerprint as fingerprint
    from batchbridge.ledger import read_steps as read_steps
    from batchbridge.meaning.advantages import RULED as RULED
    from batchbridge.meaning.advantages import group_advantages as group_advantages
    from batchbridge.meaning.candidates import CandidatePlan as CandidatePlan
    from batchbridge.meaning.critic import Critic as Critic
    from batchbridge.meaning.critic_run import run_of_critic as run_of_critic
    from batchbridge.meaning.findings import Phase as Phase
    from batchbridge.meaning.findings import Severity as Severity
    from batchbridge.meaning.micro_batches import Length as Length
    from batchbridge.meaning.micro_batches import MicroBatches as MicroBatches
    from batchbridge.meaning.micro_batches import linear as linear
    from batchbridge.meaning.micro_batches import partition as partition
    from batchbridge.meaning.micro_batches import partition_by_tokens as partition_by_tokens
    from batchbridge.meaning.plan import RolloutPlan as RolloutPlan
    from batchbridge.meaning.plan import StepPlan as StepPlan
    from batchbridge.meaning.prompt_digest import PromptColumn as PromptColumn
    from batchbridge.meaning.rounding import float32_rooms as float32_rooms
    from batchbridge.meaning.spec import Advantage as Advantage
    from batchbridge.meaning.spec import Carried as Carried
    from batchbridge.meaning.spec import DenominatorScope as DenominatorScope
    from batchbridge.meaning.spec import Horizon as Horizon
    from batchbridge.meaning.spec import Loss as Loss
    from batchbridge.meaning.spec import LossTerm as LossTerm
    from batchbridge.meaning.spec import MicroBatch as MicroBatch
    from batchbridge.meaning.spec import Objective as Objective
    from batchbridge.meaning.spec import OptimizerStep as OptimizerStep
    from batchbridge.meaning.spec import Order as Order
    from batchbridge.meaning.spec import Rollout as Rollout
    from batchbridge.meaning.spec import Topology as Topology
    from batchbridge.meaning.spec import walk as walk
    from batchbridge.meaning.weights import Normaliser as Normaliser
    from batchbridge.meaning.weights import Row as Row
    from batchbridge.meaning.weights import token_weights as token_weights
    from batchbridge.reading.arguments import parse_arguments as parse_arguments
    from batchbridge.reading.arguments import parse_scalar as parse_scalar
    from batchbridge.reading.arguments import set_on_top as set_on_top
    from batchbridge.reading.documents import folders_above as folders_above
    from batchbridge.reading.documents import root_of as root_of
    from batchbridge.reading.files import load_source as load_source
    from batchbridge.reading.files import near_file as near_file
    from batchbridge.reading.launchers import launched_world_size as launched_world_size
    from batchbridge.reading.launchers import launcher_of as launcher_of
    from batchbridge.reading.pins import pinned as pinned
    from batchbridge.reading.python import python_text as python_text
    from batchbridge.reading.python import trainers_of as trainers_of
    from batchbridge.rules.nearest_numbers import LARGEST as LARGEST
    from batchbridge.rules.nearest_numbers import Variable as Variable
    from batchbridge.rules.nearest_numbers import divisors as divisors
    from batchbridge.rules.nearest_numbers import nearest_numbers as nearest_numbers
    from batchbridge.rules.nearest_numbers import neighbours as neighbours
    from batchbridge.running.follow import follow as follow
    from batchbridge.running.follow import follow_before as follow_before
    from batchbridge.running.launch import call_after_import as call_after_import
    from batchbridge.running.launch import current_launch as current_launch
    from batchbridge.running.launch_ray import reach_workers as reach_workers
else:  # a type checker that saw these functions would take every misspelt name for an attribute
    from batchbridge.lazily import loader

    __getattr__, __dir__ = loader(__name__)
