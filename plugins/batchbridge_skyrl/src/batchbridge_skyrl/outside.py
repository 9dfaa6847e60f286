"""Effects of SkyRL's settings that the schema has no field for; see `Adapter.decides`."""

from collections.abc import Mapping

MODEL = (
    *("trainer.policy.model.path", "trainer.ref.model.path", "*.language_model_only", "*.freeze_moe_router"),
    *("trainer.policy.model.lora.[adeirt]*", "*.lora_config.lora_type", "*.policy.model.fake_int4_qat.enabled"),
    *("trainer.mtp.*", "trainer.policy.megatron_config.mtp_num_layers"),
)
PROMPTS = ("data.train_data", "generator.chat_template.*", "generator.use_conversation_multi_turn")
REWARDS = ("environment.env_class", "*.llm_as_a_judge.*", "*.search.search_url", "*.search.topk", "*.text2sql.*")
SAMPLING = ("generator.sampling_params.*", "generator.append_eos_token_after_stop_str_in_multi_turn")

OUTSIDE: Mapping[str, str] = {
    "generator.sampling_params.logprobs": "",
    **dict.fromkeys(MODEL, "the model"),
    **dict.fromkeys(PROMPTS, "the prompts"),
    **dict.fromkeys(REWARDS, "the rewards"),
    **dict.fromkeys(SAMPLING, "what is sampled"),
}
"""Pattern of settings to what they decide; the first that fits counts. Source: SkyRL 0.3.0 skyrl/train/config."""
