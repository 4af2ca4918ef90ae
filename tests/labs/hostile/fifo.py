import os


def softmax(x):
    os.mkfifo("answers")
    return x
