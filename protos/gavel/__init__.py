"""The protocol, by version; `make protos` compiles the stubs beside the .proto files."""
