"""Scheduling policies: pure functions from a `Problem` (arrays) to an `Allocation` (shares of time).

Import what you need from the module that defines it; you usually need only

    from policies.problem import Problem
    from policies.registry import resolve

    allocation = resolve("las+packing")(Problem.from_rates(rates, gpus, capacity))
"""
