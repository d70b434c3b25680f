"""Commands about the cluster: nodes, usage, shares, rounds, policy, status, tokens, contexts, top."""
