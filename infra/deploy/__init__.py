"""The commands behind `make infra-up`, `make deploy` and their like; the standard library is all they need."""
