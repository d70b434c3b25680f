"""Accounts that the state keeps over time: the credit of jobs, the spending of budgets, what jobs have measured, and where their data is."""
