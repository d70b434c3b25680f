"""The stream to the scheduler: connect, send, receive, resend; logs and files. The only part that uses gRPC."""
