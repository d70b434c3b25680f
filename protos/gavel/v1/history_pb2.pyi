import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetTimelineRequest(_message.Message):
    __slots__ = ("job", "page_size", "page_token")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    job: str
    page_size: int
    page_token: str
    def __init__(self, job: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class Timeline(_message.Message):
    __slots__ = ("leases", "next_page_token")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[LeaseRecord]
    next_page_token: str
    def __init__(self, leases: _Optional[_Iterable[_Union[LeaseRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class LeaseRecord(_message.Message):
    __slots__ = ("lease", "attempt", "round", "worker_type", "gpus", "plan", "with_job", "granted", "started", "ended", "outcome", "why", "exit_code", "run_s", "stepping_s", "steps", "steps_saved", "steps_made", "job")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WORKER_TYPE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    WITH_JOB_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    RUN_S_FIELD_NUMBER: _ClassVar[int]
    STEPPING_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEPS_SAVED_FIELD_NUMBER: _ClassVar[int]
    STEPS_MADE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    lease: str
    attempt: int
    round: int
    worker_type: str
    gpus: _containers.RepeatedScalarFieldContainer[str]
    plan: str
    with_job: str
    granted: _timestamp_pb2.Timestamp
    started: _timestamp_pb2.Timestamp
    ended: _timestamp_pb2.Timestamp
    outcome: str
    why: str
    exit_code: int
    run_s: float
    stepping_s: float
    steps: float
    steps_saved: float
    steps_made: float
    job: str
    def __init__(self, lease: _Optional[str] = ..., attempt: _Optional[int] = ..., round: _Optional[int] = ..., worker_type: _Optional[str] = ..., gpus: _Optional[_Iterable[str]] = ..., plan: _Optional[str] = ..., with_job: _Optional[str] = ..., granted: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., outcome: _Optional[str] = ..., why: _Optional[str] = ..., exit_code: _Optional[int] = ..., run_s: _Optional[float] = ..., stepping_s: _Optional[float] = ..., steps: _Optional[float] = ..., steps_saved: _Optional[float] = ..., steps_made: _Optional[float] = ..., job: _Optional[str] = ...) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ("since", "until", "node", "page_size", "page_token")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    node: str
    page_size: int
    page_token: str
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., node: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListLeasesResponse(_message.Message):
    __slots__ = ("leases", "next_page_token")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[LeaseRecord]
    next_page_token: str
    def __init__(self, leases: _Optional[_Iterable[_Union[LeaseRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListRoundsRequest(_message.Message):
    __slots__ = ("since", "until", "page_size", "page_token")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    page_size: int
    page_token: str
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListRoundsResponse(_message.Message):
    __slots__ = ("rounds", "next_page_token")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedCompositeFieldContainer[RoundRecord]
    next_page_token: str
    def __init__(self, rounds: _Optional[_Iterable[_Union[RoundRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RoundRecord(_message.Message):
    __slots__ = ("number", "planned", "starts", "ends", "granted", "renewed", "ended", "skipped", "allocation", "policy", "solve_s", "failed")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SOLVE_S_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    number: int
    planned: _timestamp_pb2.Timestamp
    starts: _timestamp_pb2.Timestamp
    ends: _timestamp_pb2.Timestamp
    granted: int
    renewed: int
    ended: int
    skipped: int
    allocation: int
    policy: str
    solve_s: float
    failed: str
    def __init__(self, number: _Optional[int] = ..., planned: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., starts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ends: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., granted: _Optional[int] = ..., renewed: _Optional[int] = ..., ended: _Optional[int] = ..., skipped: _Optional[int] = ..., allocation: _Optional[int] = ..., policy: _Optional[str] = ..., solve_s: _Optional[float] = ..., failed: _Optional[str] = ...) -> None: ...

class GetSharesRequest(_message.Message):
    __slots__ = ("since", "until", "step_s", "tenant")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    step_s: float
    tenant: str
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., step_s: _Optional[float] = ..., tenant: _Optional[str] = ...) -> None: ...

class Shares(_message.Message):
    __slots__ = ("accounts", "since", "until", "step_s")
    class Account(_message.Message):
        __slots__ = ("starts", "tenant", "worker_type", "due_s", "received_s")
        STARTS_FIELD_NUMBER: _ClassVar[int]
        TENANT_FIELD_NUMBER: _ClassVar[int]
        WORKER_TYPE_FIELD_NUMBER: _ClassVar[int]
        DUE_S_FIELD_NUMBER: _ClassVar[int]
        RECEIVED_S_FIELD_NUMBER: _ClassVar[int]
        starts: _timestamp_pb2.Timestamp
        tenant: str
        worker_type: str
        due_s: float
        received_s: float
        def __init__(self, starts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., tenant: _Optional[str] = ..., worker_type: _Optional[str] = ..., due_s: _Optional[float] = ..., received_s: _Optional[float] = ...) -> None: ...
    ACCOUNTS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    accounts: _containers.RepeatedCompositeFieldContainer[Shares.Account]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    step_s: float
    def __init__(self, accounts: _Optional[_Iterable[_Union[Shares.Account, _Mapping]]] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., step_s: _Optional[float] = ...) -> None: ...

class GetGpuTimeRequest(_message.Message):
    __slots__ = ("since", "until", "by", "user")
    class By(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        BY_UNSPECIFIED: _ClassVar[GetGpuTimeRequest.By]
        BY_USER: _ClassVar[GetGpuTimeRequest.By]
        BY_TENANT: _ClassVar[GetGpuTimeRequest.By]
        BY_JOB_TYPE: _ClassVar[GetGpuTimeRequest.By]
        BY_TYPE: _ClassVar[GetGpuTimeRequest.By]
        BY_NODE: _ClassVar[GetGpuTimeRequest.By]
        BY_DAY: _ClassVar[GetGpuTimeRequest.By]
    BY_UNSPECIFIED: GetGpuTimeRequest.By
    BY_USER: GetGpuTimeRequest.By
    BY_TENANT: GetGpuTimeRequest.By
    BY_JOB_TYPE: GetGpuTimeRequest.By
    BY_TYPE: GetGpuTimeRequest.By
    BY_NODE: GetGpuTimeRequest.By
    BY_DAY: GetGpuTimeRequest.By
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    by: GetGpuTimeRequest.By
    user: str
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., by: _Optional[_Union[GetGpuTimeRequest.By, str]] = ..., user: _Optional[str] = ...) -> None: ...

class GpuTime(_message.Message):
    __slots__ = ("rows", "since", "until")
    class Row(_message.Message):
        __slots__ = ("name", "held_s", "useful_s", "restart_s", "lost_s", "idle_s", "whole")
        NAME_FIELD_NUMBER: _ClassVar[int]
        HELD_S_FIELD_NUMBER: _ClassVar[int]
        USEFUL_S_FIELD_NUMBER: _ClassVar[int]
        RESTART_S_FIELD_NUMBER: _ClassVar[int]
        LOST_S_FIELD_NUMBER: _ClassVar[int]
        IDLE_S_FIELD_NUMBER: _ClassVar[int]
        WHOLE_FIELD_NUMBER: _ClassVar[int]
        name: str
        held_s: float
        useful_s: float
        restart_s: float
        lost_s: float
        idle_s: float
        whole: GpuTime.Whole
        def __init__(self, name: _Optional[str] = ..., held_s: _Optional[float] = ..., useful_s: _Optional[float] = ..., restart_s: _Optional[float] = ..., lost_s: _Optional[float] = ..., idle_s: _Optional[float] = ..., whole: _Optional[_Union[GpuTime.Whole, _Mapping]] = ...) -> None: ...
    class Whole(_message.Message):
        __slots__ = ("all_s", "shared_s", "free_s", "broken_s", "unreachable_s", "drained_s")
        ALL_S_FIELD_NUMBER: _ClassVar[int]
        SHARED_S_FIELD_NUMBER: _ClassVar[int]
        FREE_S_FIELD_NUMBER: _ClassVar[int]
        BROKEN_S_FIELD_NUMBER: _ClassVar[int]
        UNREACHABLE_S_FIELD_NUMBER: _ClassVar[int]
        DRAINED_S_FIELD_NUMBER: _ClassVar[int]
        all_s: float
        shared_s: float
        free_s: float
        broken_s: float
        unreachable_s: float
        drained_s: float
        def __init__(self, all_s: _Optional[float] = ..., shared_s: _Optional[float] = ..., free_s: _Optional[float] = ..., broken_s: _Optional[float] = ..., unreachable_s: _Optional[float] = ..., drained_s: _Optional[float] = ...) -> None: ...
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[GpuTime.Row]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    def __init__(self, rows: _Optional[_Iterable[_Union[GpuTime.Row, _Mapping]]] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
