"""How results read: texts about jobs, tables, HTML for notebooks, and views that update. No I/O but `display`."""
