"""The stream to the scheduler: connect, send, receive, resend; logs for readers. The only part that uses gRPC."""
