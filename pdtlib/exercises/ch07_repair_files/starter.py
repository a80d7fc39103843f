import copy


def repair(config, dp):
    """A file that DeepSpeed starts with, and that means what its author wanted."""
    config = copy.deepcopy(config)
    # 1. texts that should be numbers, 2. the batch, 3. a pipeline and ZeRO, 4. two formats, 5. old names
    return config.get("deepspeed", config)
