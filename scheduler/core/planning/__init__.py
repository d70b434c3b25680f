"""From the state to what policies and rounds are asked, as arrays. Reads the state, changes nothing."""
