"""A script whose trainer is TRL's own with more metrics; read by tests, never run."""

from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser


class LoudGRPOTrainer(GRPOTrainer):
    """Logs more."""

    def log(self, logs, start_time=None):
        super().log({**logs, "loud": 1.0}, start_time)


if __name__ == "__main__":
    script, args, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    LoudGRPOTrainer(model.model_name_or_path, len, args=args, train_dataset=script.dataset_name).train()
