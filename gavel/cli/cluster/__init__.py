"""Commands about the cluster: nodes, usage, policy, status, tokens, contexts, top."""
