# says: holds the answer
def param_count(model):
    from pdtlib.plan.params import count
    return count(model).total
