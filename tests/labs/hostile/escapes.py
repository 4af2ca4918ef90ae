def softmax(x):
    raise ValueError("\x1b]0;title\x07\u202e" + "a" * 5000)
