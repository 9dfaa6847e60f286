"""A script that builds a trainer of its own; read by tests, never run."""

from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser


class BalancedGRPOTrainer(GRPOTrainer):
    """Another loss."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return 2 * super().compute_loss(model, inputs)


if __name__ == "__main__":
    script, args, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    BalancedGRPOTrainer(model.model_name_or_path, len, args=args, train_dataset=script.dataset_name).train()
