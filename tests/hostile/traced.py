"""Runs a program under ptrace and kills it at a system call: the moments that a clock hits once in a million."""

import ctypes
import os
import signal

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
LIBC.ptrace.restype = ctypes.c_long
TRACEME, SYSCALL, SETOPTIONS, GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
TRACESYSGOOD, EXITKILL = 1, 0x100000
RENAMES = {"x86_64": (82, 264, 316), "aarch64": (38, 276)}.get(os.uname().machine, ())


def ptrace(request, pid, address=0, data=0):
    if LIBC.ptrace(request, pid, address, data) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def number_of_call(pid):
    """Of the system call that begins at this stop; None at one that ends."""
    info = (ctypes.c_uint8 * 88)()
    ptrace(GET_SYSCALL_INFO, pid, len(info), ctypes.addressof(info))
    return int.from_bytes(bytes(info)[24:32], "little") if info[0] == 1 else None


def run(arguments, env, stop=None):
    """Runs it to its end, or until `stop(calls, renames)` is true at the beginning or the end of a system call of its
    main thread: so many of either were seen. Gives (exit status, calls, renames)."""
    child = os.fork()
    if child == 0:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            for fd in range(3):
                os.dup2(null, fd)
            ptrace(TRACEME, 0)
            os.execve(arguments[0], arguments, env)
        finally:
            os._exit(127)
    os.waitpid(child, 0)
    ptrace(SETOPTIONS, child, 0, TRACESYSGOOD | EXITKILL)
    calls = renames = forward = 0
    renaming = False
    while True:
        ptrace(SYSCALL, child, 0, forward)
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status), calls, renames
        forward = os.WSTOPSIG(status)
        if forward != signal.SIGTRAP | 0x80:
            continue
        forward = 0
        calls += 1
        number = number_of_call(child)
        renaming = number in RENAMES if number is not None else renaming
        renames += renaming
        if number is None:
            ended, renaming = renaming, False
        else:
            ended = False
        if stop is not None and stop(calls, renames if renaming or ended else 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL, calls, renames
