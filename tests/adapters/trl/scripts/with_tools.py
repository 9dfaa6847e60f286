"""A script that gives TRL's own trainer a tool; read by tests, never run."""

import trl


def look_up(word: str) -> str:
    """Looks a word up.

    Args:
        word: What to look up.
    """
    return word


if __name__ == "__main__":
    script, args, model = trl.TrlParser((trl.ScriptArguments, trl.GRPOConfig, trl.ModelConfig)).parse_args_and_config()
    tools = [look_up]
    trl.GRPOTrainer(model.model_name_or_path, len, args=args, train_dataset=script.dataset_name, tools=tools).train()
