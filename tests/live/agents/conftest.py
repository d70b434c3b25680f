"""What tests of links with TLS share."""

from __future__ import annotations

import pytest

from scheduler.live.access.tls import Keys


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """An authority and a server's certificate."""
    new_keys = Keys(tmp_path_factory.mktemp("tls"))
    new_keys.make(["127.0.0.1"])
    return new_keys
