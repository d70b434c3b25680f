"""What happens when a message raises: the state is restored, the message refused alone, its cause put aside."""
