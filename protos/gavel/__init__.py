"""The protocol, by version; `make protos` compiles the stubs that lie beside the .proto files."""
