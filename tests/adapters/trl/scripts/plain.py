"""A script that builds TRL's own trainer; read by tests, never run."""

from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser


def length(completions, **columns):
    return [float(len(completion)) for completion in completions]


if __name__ == "__main__":
    script, args, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    GRPOTrainer(model.model_name_or_path, length, args=args, train_dataset=script.dataset_name).train()
