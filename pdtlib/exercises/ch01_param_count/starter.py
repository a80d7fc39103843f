def param_count(model):
    """The number of parameters of the model, an int."""
    h = model.hidden
    # The rule of thumb: 12 h² a block, plus the embedding. Make it exact.
    return 12 * model.layers * h * h + model.vocab * h
