"""The calls about the channels of notifications, for both clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gavel.client import calls
from gavel.client.transport.channels import AsyncTransport, SyncTransport

if TYPE_CHECKING:
    from gavel.client import results as r


class NotificationMethods:
    """The calls of the blocking client."""

    _wire: SyncTransport

    def channels(self) -> tuple[r.Channel, ...]:
        """Return the channels of notifications; users see those that jobs may choose."""
        return self._wire.call(calls.channels())

    def test_channel(self, channel: str) -> str:
        """Send a test message to a channel. Return why it was not confirmed; empty if it was."""
        return self._wire.call(calls.test_channel(channel=channel))


class AsyncNotificationMethods:
    """The calls of the client for programs with an event loop."""

    _wire: AsyncTransport

    async def channels(self) -> tuple[r.Channel, ...]:
        """Return the channels of notifications; users see those that jobs may choose."""
        return await self._wire.call(calls.channels())

    async def test_channel(self, channel: str) -> str:
        """Send a test message to a channel. Return why it was not confirmed; empty if it was."""
        return await self._wire.call(calls.test_channel(channel=channel))
