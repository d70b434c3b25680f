"""Problems and programs that run as they are."""
