def sofmax(x):
    return x
