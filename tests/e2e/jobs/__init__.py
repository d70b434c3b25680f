"""The scripts that the jobs of these tests run: small, without PyTorch, reporting in lines of JSON."""
