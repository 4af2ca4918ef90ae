def repeat_kv(k, groups):
    return k.repeat(groups, axis=-1)
