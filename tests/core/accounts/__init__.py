"""Tests of the accounts of jobs and tenants."""
