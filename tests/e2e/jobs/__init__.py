"""What the jobs of these tests run: small, without PyTorch, and telling what they do in lines of JSON."""
