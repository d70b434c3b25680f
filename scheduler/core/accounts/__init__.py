"""Accounts that the state keeps over time: the credit of jobs, the spending of budgets, and what jobs have measured."""
