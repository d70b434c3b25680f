"""Accounts that the state keeps over time: credit of jobs, spending of budgets, measured values, cached data."""
