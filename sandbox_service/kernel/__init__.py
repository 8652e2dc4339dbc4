"""The kernel's means of isolation, each a thin layer over system calls that Python has no function for."""
