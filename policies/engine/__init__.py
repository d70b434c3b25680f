"""How programs are solved: grouping, solvers, our interior-point method, filling, prices; no objectives."""
