"""A script that builds one of two known copies of TRL's trainer; read by tests, never run."""

from open_r1.trainer import Qwen2VLGRPOTrainer, Qwen2VLGRPOVLLMTrainerModified
from trl import GRPOConfig, ModelConfig, ScriptArguments, TrlParser

if __name__ == "__main__":
    script, args, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    trainer = Qwen2VLGRPOVLLMTrainerModified if args.use_vllm else Qwen2VLGRPOTrainer
    trainer(model.model_name_or_path, len, args=args, train_dataset=script.dataset_name).train()
