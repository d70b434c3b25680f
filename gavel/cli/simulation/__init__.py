"""Commands that simulate, replay and compare, and the tables and plots of their figures."""
