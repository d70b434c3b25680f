"""The settings that limit how much of the scheduler its users may occupy."""

from __future__ import annotations

from typing import Annotated

import msgspec

from protos.gavel.v1.limits import PACKAGE_BYTES_MAX
from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec


class PeopleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits for users."""

    submissions_per_s: Annotated[float, "Jobs that one user may submit per second, on average."] = 1000.0
    submissions_burst: Annotated[int, "Jobs that one user may submit at once."] = 100_000
    jobs_unfinished_max: Annotated[int, "Unfinished jobs of one user."] = 100_000
    submission_jobs_max: Annotated[
        int,
        "Jobs in one submission, counting every member of an array; 10,000 delay other calls by 0.5 s.",
    ] = 10_000
    calls_max: Annotated[int, "Calls in progress of all users together; further ones must retry later."] = (
        1000
    )
    calls_per_user_max: Annotated[int, "Calls in progress of one user."] = 100
    calls_without_token_max: Annotated[int, "Calls in progress without a token, per address."] = 16
    watchers_max: Annotated[int, "Calls in progress that watch jobs or rounds, or follow logs."] = 1000
    terminals: Annotated[bool, "Whether users may run interactive jobs and open terminals of their jobs."] = (
        True
    )
    package_bytes_max: Annotated[int, "Size of a packed work directory; agents take at most 1 GiB."] = (
        PACKAGE_BYTES_MAX
    )
    packages_bytes_max: Annotated[int, "Size of all packages together."] = 50 * 1024**3
    package_keep_s: Annotated[float, "How long a package is kept if no unfinished job needs it."] = 86_400.0
    token_valid_s: Annotated[float, "How long a token is valid by default."] = 90 * 86_400.0
    token_valid_s_max: Annotated[float, "The longest validity of a token."] = 2 * 365 * 86_400.0
    audit_bytes_max: Annotated[int, "Size of one file of the audit log."] = 64 * 1024**2
    audit_files: Annotated[int, "How many files of the audit log are kept."] = 10

    def checked(self) -> PeopleConfig:
        """Return these settings, or raise InvalidSpec with the field that is wrong."""
        bounds.check_all(self, bounds.PEOPLE)
        if self.token_valid_s > self.token_valid_s_max:
            raise InvalidSpec("token_valid_s", f"is above token_valid_s_max, {self.token_valid_s_max:g}")
        return self
