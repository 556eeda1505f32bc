"""Looking at a program and at a run.

``memory_view`` draws a memory plan; ``tracer`` records a run as an ETDump, with the time and the
values of each instruction.
"""
