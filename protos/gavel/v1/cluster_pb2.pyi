import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_STATE_UNSPECIFIED: _ClassVar[NodeState]
    NODE_STATE_UP: _ClassVar[NodeState]
    NODE_STATE_DRAINING: _ClassVar[NodeState]
    NODE_STATE_SILENT: _ClassVar[NodeState]
    NODE_STATE_LOST: _ClassVar[NodeState]
    NODE_STATE_FAULTY: _ClassVar[NodeState]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_VIEWER: _ClassVar[Role]
    ROLE_USER: _ClassVar[Role]
    ROLE_OPERATOR: _ClassVar[Role]
    ROLE_ADMIN: _ClassVar[Role]
    ROLE_AGENT: _ClassVar[Role]
NODE_STATE_UNSPECIFIED: NodeState
NODE_STATE_UP: NodeState
NODE_STATE_DRAINING: NodeState
NODE_STATE_SILENT: NodeState
NODE_STATE_LOST: NodeState
NODE_STATE_FAULTY: NodeState
ROLE_UNSPECIFIED: Role
ROLE_VIEWER: Role
ROLE_USER: Role
ROLE_OPERATOR: Role
ROLE_ADMIN: Role
ROLE_AGENT: Role

class ListChannelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListChannelsResponse(_message.Message):
    __slots__ = ("channels",)
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[Channel]
    def __init__(self, channels: _Optional[_Iterable[_Union[Channel, _Mapping]]] = ...) -> None: ...

class Channel(_message.Message):
    __slots__ = ("name", "for_jobs", "url", "events", "is_signed", "waiting", "counted", "succeeded", "failed", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FOR_JOBS_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    IS_SIGNED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    for_jobs: bool
    url: str
    events: _containers.RepeatedScalarFieldContainer[str]
    is_signed: bool
    waiting: int
    counted: int
    succeeded: _timestamp_pb2.Timestamp
    failed: _timestamp_pb2.Timestamp
    error: str
    def __init__(self, name: _Optional[str] = ..., for_jobs: _Optional[bool] = ..., url: _Optional[str] = ..., events: _Optional[_Iterable[str]] = ..., is_signed: _Optional[bool] = ..., waiting: _Optional[int] = ..., counted: _Optional[int] = ..., succeeded: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., failed: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class TestChannelRequest(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: str
    def __init__(self, channel: _Optional[str] = ...) -> None: ...

class TestChannelResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ("packages",)
    PACKAGES_FIELD_NUMBER: _ClassVar[int]
    packages: bool
    def __init__(self, packages: _Optional[bool] = ...) -> None: ...

class BackupData(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("version", "epoch", "started", "now", "policy", "round", "round_ends", "jobs", "nodes", "gpus", "gpus_busy", "stopping", "warnings", "data_dir")
    class JobsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUND_ENDS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPUS_BUSY_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    version: str
    epoch: int
    started: _timestamp_pb2.Timestamp
    now: _timestamp_pb2.Timestamp
    policy: str
    round: int
    round_ends: _timestamp_pb2.Timestamp
    jobs: _containers.ScalarMap[str, int]
    nodes: int
    gpus: int
    gpus_busy: int
    stopping: bool
    warnings: _containers.RepeatedScalarFieldContainer[str]
    data_dir: str
    def __init__(self, version: _Optional[str] = ..., epoch: _Optional[int] = ..., started: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., now: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., policy: _Optional[str] = ..., round: _Optional[int] = ..., round_ends: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., jobs: _Optional[_Mapping[str, int]] = ..., nodes: _Optional[int] = ..., gpus: _Optional[int] = ..., gpus_busy: _Optional[int] = ..., stopping: _Optional[bool] = ..., warnings: _Optional[_Iterable[str]] = ..., data_dir: _Optional[str] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "worker_type", "state", "why", "since", "gpus", "labels", "cpus", "memory_gb", "agent_version", "storage", "heard", "driver_version", "drained", "speed", "containment", "back")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    WORKER_TYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    CONTAINMENT_FIELD_NUMBER: _ClassVar[int]
    BACK_FIELD_NUMBER: _ClassVar[int]
    name: str
    worker_type: str
    state: NodeState
    why: str
    since: _timestamp_pb2.Timestamp
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    labels: _containers.ScalarMap[str, str]
    cpus: float
    memory_gb: float
    agent_version: str
    storage: str
    heard: _timestamp_pb2.Timestamp
    driver_version: str
    drained: bool
    speed: float
    containment: str
    back: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., worker_type: _Optional[str] = ..., state: _Optional[_Union[NodeState, str]] = ..., why: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., labels: _Optional[_Mapping[str, str]] = ..., cpus: _Optional[float] = ..., memory_gb: _Optional[float] = ..., agent_version: _Optional[str] = ..., storage: _Optional[str] = ..., heard: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., driver_version: _Optional[str] = ..., drained: _Optional[bool] = ..., speed: _Optional[float] = ..., containment: _Optional[str] = ..., back: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("index", "name", "uuid", "memory_gb", "memory_used_gb", "temperature_c", "broken", "jobs", "withheld")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_GB_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    uuid: str
    memory_gb: float
    memory_used_gb: float
    temperature_c: float
    broken: str
    jobs: _containers.RepeatedScalarFieldContainer[str]
    withheld: bool
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., uuid: _Optional[str] = ..., memory_gb: _Optional[float] = ..., memory_used_gb: _Optional[float] = ..., temperature_c: _Optional[float] = ..., broken: _Optional[str] = ..., jobs: _Optional[_Iterable[str]] = ..., withheld: _Optional[bool] = ...) -> None: ...

class CommandNodeRequest(_message.Message):
    __slots__ = ("node", "action", "reason")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[CommandNodeRequest.Action]
        ACTION_DRAIN: _ClassVar[CommandNodeRequest.Action]
        ACTION_RESUME: _ClassVar[CommandNodeRequest.Action]
        ACTION_REMOVE: _ClassVar[CommandNodeRequest.Action]
    ACTION_UNSPECIFIED: CommandNodeRequest.Action
    ACTION_DRAIN: CommandNodeRequest.Action
    ACTION_RESUME: CommandNodeRequest.Action
    ACTION_REMOVE: CommandNodeRequest.Action
    NODE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node: str
    action: CommandNodeRequest.Action
    reason: str
    def __init__(self, node: _Optional[str] = ..., action: _Optional[_Union[CommandNodeRequest.Action, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: str
    def __init__(self, policy: _Optional[str] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("policy", "available")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    policy: str
    available: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, policy: _Optional[str] = ..., available: _Optional[_Iterable[str]] = ...) -> None: ...

class GetAllocationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Allocation(_message.Message):
    __slots__ = ("number", "policy", "adopted", "failed", "optimal", "notes", "shares", "price_per_gpu")
    class PricePerGpuEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class Share(_message.Message):
        __slots__ = ("jobs", "worker_type", "gpus", "label", "share", "entitled_s", "received_s", "rate")
        JOBS_FIELD_NUMBER: _ClassVar[int]
        WORKER_TYPE_FIELD_NUMBER: _ClassVar[int]
        GPUS_FIELD_NUMBER: _ClassVar[int]
        LABEL_FIELD_NUMBER: _ClassVar[int]
        SHARE_FIELD_NUMBER: _ClassVar[int]
        ENTITLED_S_FIELD_NUMBER: _ClassVar[int]
        RECEIVED_S_FIELD_NUMBER: _ClassVar[int]
        RATE_FIELD_NUMBER: _ClassVar[int]
        jobs: _containers.RepeatedScalarFieldContainer[str]
        worker_type: str
        gpus: int
        label: str
        share: float
        entitled_s: float
        received_s: float
        rate: float
        def __init__(self, jobs: _Optional[_Iterable[str]] = ..., worker_type: _Optional[str] = ..., gpus: _Optional[int] = ..., label: _Optional[str] = ..., share: _Optional[float] = ..., entitled_s: _Optional[float] = ..., received_s: _Optional[float] = ..., rate: _Optional[float] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    OPTIMAL_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    PRICE_PER_GPU_FIELD_NUMBER: _ClassVar[int]
    number: int
    policy: str
    adopted: _timestamp_pb2.Timestamp
    failed: str
    optimal: bool
    notes: _containers.RepeatedScalarFieldContainer[str]
    shares: _containers.RepeatedCompositeFieldContainer[Allocation.Share]
    price_per_gpu: _containers.ScalarMap[str, float]
    def __init__(self, number: _Optional[int] = ..., policy: _Optional[str] = ..., adopted: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., failed: _Optional[str] = ..., optimal: _Optional[bool] = ..., notes: _Optional[_Iterable[str]] = ..., shares: _Optional[_Iterable[_Union[Allocation.Share, _Mapping]]] = ..., price_per_gpu: _Optional[_Mapping[str, float]] = ...) -> None: ...

class GetMatrixRequest(_message.Message):
    __slots__ = ("by_tenant", "tenant", "page_size", "page_token")
    BY_TENANT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    by_tenant: bool
    tenant: str
    page_size: int
    page_token: str
    def __init__(self, by_tenant: _Optional[bool] = ..., tenant: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class Matrix(_message.Message):
    __slots__ = ("rows", "price_per_gpu", "next_page_token")
    class PricePerGpuEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class Row(_message.Message):
        __slots__ = ("job", "name", "tenant", "jobs", "cells")
        JOB_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        TENANT_FIELD_NUMBER: _ClassVar[int]
        JOBS_FIELD_NUMBER: _ClassVar[int]
        CELLS_FIELD_NUMBER: _ClassVar[int]
        job: str
        name: str
        tenant: str
        jobs: int
        cells: _containers.RepeatedCompositeFieldContainer[Matrix.Cell]
        def __init__(self, job: _Optional[str] = ..., name: _Optional[str] = ..., tenant: _Optional[str] = ..., jobs: _Optional[int] = ..., cells: _Optional[_Iterable[_Union[Matrix.Cell, _Mapping]]] = ...) -> None: ...
    class Cell(_message.Message):
        __slots__ = ("worker_type", "due_s", "received_s", "gpus")
        WORKER_TYPE_FIELD_NUMBER: _ClassVar[int]
        DUE_S_FIELD_NUMBER: _ClassVar[int]
        RECEIVED_S_FIELD_NUMBER: _ClassVar[int]
        GPUS_FIELD_NUMBER: _ClassVar[int]
        worker_type: str
        due_s: float
        received_s: float
        gpus: int
        def __init__(self, worker_type: _Optional[str] = ..., due_s: _Optional[float] = ..., received_s: _Optional[float] = ..., gpus: _Optional[int] = ...) -> None: ...
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PRICE_PER_GPU_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[Matrix.Row]
    price_per_gpu: _containers.ScalarMap[str, float]
    next_page_token: str
    def __init__(self, rows: _Optional[_Iterable[_Union[Matrix.Row, _Mapping]]] = ..., price_per_gpu: _Optional[_Mapping[str, float]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListTenantsRequest(_message.Message):
    __slots__ = ("tenants",)
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenants: _Optional[_Iterable[str]] = ...) -> None: ...

class ListTenantsResponse(_message.Message):
    __slots__ = ("tenants",)
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[Tenant]
    def __init__(self, tenants: _Optional[_Iterable[_Union[Tenant, _Mapping]]] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("gpus", "gpu_hours", "cost", "beyond", "jobs_running", "jobs_unfinished")
    class GpusEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class GpuHoursEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class CostEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    BEYOND_FIELD_NUMBER: _ClassVar[int]
    JOBS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    JOBS_UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.ScalarMap[str, int]
    gpu_hours: _containers.ScalarMap[str, float]
    cost: _containers.ScalarMap[str, float]
    beyond: str
    jobs_running: int
    jobs_unfinished: int
    def __init__(self, gpus: _Optional[_Mapping[str, int]] = ..., gpu_hours: _Optional[_Mapping[str, float]] = ..., cost: _Optional[_Mapping[str, float]] = ..., beyond: _Optional[str] = ..., jobs_running: _Optional[int] = ..., jobs_unfinished: _Optional[int] = ...) -> None: ...

class Tenant(_message.Message):
    __slots__ = ("name", "weight", "policy", "quota", "each_user", "declared", "jobs_unfinished", "jobs_running", "limits", "version")
    class Limit(_message.Message):
        __slots__ = ("user", "resource", "of", "limit", "used", "renews_at", "committed")
        USER_FIELD_NUMBER: _ClassVar[int]
        RESOURCE_FIELD_NUMBER: _ClassVar[int]
        OF_FIELD_NUMBER: _ClassVar[int]
        LIMIT_FIELD_NUMBER: _ClassVar[int]
        USED_FIELD_NUMBER: _ClassVar[int]
        RENEWS_AT_FIELD_NUMBER: _ClassVar[int]
        COMMITTED_FIELD_NUMBER: _ClassVar[int]
        user: str
        resource: str
        of: str
        limit: float
        used: float
        renews_at: _timestamp_pb2.Timestamp
        committed: float
        def __init__(self, user: _Optional[str] = ..., resource: _Optional[str] = ..., of: _Optional[str] = ..., limit: _Optional[float] = ..., used: _Optional[float] = ..., renews_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., committed: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    EACH_USER_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    JOBS_UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    JOBS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    weight: float
    policy: str
    quota: Quota
    each_user: Quota
    declared: bool
    jobs_unfinished: int
    jobs_running: int
    limits: _containers.RepeatedCompositeFieldContainer[Tenant.Limit]
    version: str
    def __init__(self, name: _Optional[str] = ..., weight: _Optional[float] = ..., policy: _Optional[str] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ..., each_user: _Optional[_Union[Quota, _Mapping]] = ..., declared: _Optional[bool] = ..., jobs_unfinished: _Optional[int] = ..., jobs_running: _Optional[int] = ..., limits: _Optional[_Iterable[_Union[Tenant.Limit, _Mapping]]] = ..., version: _Optional[str] = ...) -> None: ...

class SetTenantsRequest(_message.Message):
    __slots__ = ("tenants", "removed")
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[Tenant]
    removed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenants: _Optional[_Iterable[_Union[Tenant, _Mapping]]] = ..., removed: _Optional[_Iterable[str]] = ...) -> None: ...

class SetTenantsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchRoundsRequest(_message.Message):
    __slots__ = ("follow",)
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    follow: bool
    def __init__(self, follow: _Optional[bool] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("number", "starts", "ends", "runs", "idle_gpus", "moved", "renewed")
    class Run(_message.Message):
        __slots__ = ("job", "worker_type", "gpus", "with_job", "renewed")
        JOB_FIELD_NUMBER: _ClassVar[int]
        WORKER_TYPE_FIELD_NUMBER: _ClassVar[int]
        GPUS_FIELD_NUMBER: _ClassVar[int]
        WITH_JOB_FIELD_NUMBER: _ClassVar[int]
        RENEWED_FIELD_NUMBER: _ClassVar[int]
        job: str
        worker_type: str
        gpus: _containers.RepeatedScalarFieldContainer[str]
        with_job: str
        renewed: bool
        def __init__(self, job: _Optional[str] = ..., worker_type: _Optional[str] = ..., gpus: _Optional[_Iterable[str]] = ..., with_job: _Optional[str] = ..., renewed: _Optional[bool] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    IDLE_GPUS_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    number: int
    starts: _timestamp_pb2.Timestamp
    ends: _timestamp_pb2.Timestamp
    runs: _containers.RepeatedCompositeFieldContainer[Round.Run]
    idle_gpus: _containers.RepeatedScalarFieldContainer[str]
    moved: int
    renewed: int
    def __init__(self, number: _Optional[int] = ..., starts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ends: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., runs: _Optional[_Iterable[_Union[Round.Run, _Mapping]]] = ..., idle_gpus: _Optional[_Iterable[str]] = ..., moved: _Optional[int] = ..., renewed: _Optional[int] = ...) -> None: ...

class GetUsageRequest(_message.Message):
    __slots__ = ("since", "until", "by", "user")
    class By(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        BY_UNSPECIFIED: _ClassVar[GetUsageRequest.By]
        BY_USER: _ClassVar[GetUsageRequest.By]
        BY_TENANT: _ClassVar[GetUsageRequest.By]
        BY_JOB_TYPE: _ClassVar[GetUsageRequest.By]
    BY_UNSPECIFIED: GetUsageRequest.By
    BY_USER: GetUsageRequest.By
    BY_TENANT: GetUsageRequest.By
    BY_JOB_TYPE: GetUsageRequest.By
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    by: GetUsageRequest.By
    user: str
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., by: _Optional[_Union[GetUsageRequest.By, str]] = ..., user: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("rows",)
    class Row(_message.Message):
        __slots__ = ("who", "gpu_s", "cost", "jobs", "completed", "failed")
        class GpuSEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: float
            def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
        WHO_FIELD_NUMBER: _ClassVar[int]
        GPU_S_FIELD_NUMBER: _ClassVar[int]
        COST_FIELD_NUMBER: _ClassVar[int]
        JOBS_FIELD_NUMBER: _ClassVar[int]
        COMPLETED_FIELD_NUMBER: _ClassVar[int]
        FAILED_FIELD_NUMBER: _ClassVar[int]
        who: str
        gpu_s: _containers.ScalarMap[str, float]
        cost: float
        jobs: int
        completed: int
        failed: int
        def __init__(self, who: _Optional[str] = ..., gpu_s: _Optional[_Mapping[str, float]] = ..., cost: _Optional[float] = ..., jobs: _Optional[int] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ...) -> None: ...
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[Usage.Row]
    def __init__(self, rows: _Optional[_Iterable[_Union[Usage.Row, _Mapping]]] = ...) -> None: ...

class SetPricesRequest(_message.Message):
    __slots__ = ("price_per_gpu_hour",)
    class PricePerGpuHourEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PRICE_PER_GPU_HOUR_FIELD_NUMBER: _ClassVar[int]
    price_per_gpu_hour: _containers.ScalarMap[str, float]
    def __init__(self, price_per_gpu_hour: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Prices(_message.Message):
    __slots__ = ("price_per_gpu_hour",)
    class PricePerGpuHourEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PRICE_PER_GPU_HOUR_FIELD_NUMBER: _ClassVar[int]
    price_per_gpu_hour: _containers.ScalarMap[str, float]
    def __init__(self, price_per_gpu_hour: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Rate(_message.Message):
    __slots__ = ("job_type", "gpus", "worker_type", "steps_per_s", "source", "measured_s", "with_job_type", "sd_steps_per_s")
    JOB_TYPE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    WORKER_TYPE_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MEASURED_S_FIELD_NUMBER: _ClassVar[int]
    WITH_JOB_TYPE_FIELD_NUMBER: _ClassVar[int]
    SD_STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    job_type: str
    gpus: int
    worker_type: str
    steps_per_s: float
    source: str
    measured_s: float
    with_job_type: str
    sd_steps_per_s: float
    def __init__(self, job_type: _Optional[str] = ..., gpus: _Optional[int] = ..., worker_type: _Optional[str] = ..., steps_per_s: _Optional[float] = ..., source: _Optional[str] = ..., measured_s: _Optional[float] = ..., with_job_type: _Optional[str] = ..., sd_steps_per_s: _Optional[float] = ...) -> None: ...

class ListRatesRequest(_message.Message):
    __slots__ = ("job_type",)
    JOB_TYPE_FIELD_NUMBER: _ClassVar[int]
    job_type: str
    def __init__(self, job_type: _Optional[str] = ...) -> None: ...

class ListRatesResponse(_message.Message):
    __slots__ = ("rates",)
    RATES_FIELD_NUMBER: _ClassVar[int]
    rates: _containers.RepeatedCompositeFieldContainer[Rate]
    def __init__(self, rates: _Optional[_Iterable[_Union[Rate, _Mapping]]] = ...) -> None: ...

class GiveRatesRequest(_message.Message):
    __slots__ = ("rates",)
    RATES_FIELD_NUMBER: _ClassVar[int]
    rates: _containers.RepeatedCompositeFieldContainer[Rate]
    def __init__(self, rates: _Optional[_Iterable[_Union[Rate, _Mapping]]] = ...) -> None: ...

class GiveRatesResponse(_message.Message):
    __slots__ = ("rates",)
    RATES_FIELD_NUMBER: _ClassVar[int]
    rates: int
    def __init__(self, rates: _Optional[int] = ...) -> None: ...

class WhoAmIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Identity(_message.Message):
    __slots__ = ("user", "role", "expires")
    USER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    user: str
    role: Role
    expires: _timestamp_pb2.Timestamp
    def __init__(self, user: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("id", "user", "role", "created", "expires", "used", "revoked", "note")
    ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    id: str
    user: str
    role: Role
    created: _timestamp_pb2.Timestamp
    expires: _timestamp_pb2.Timestamp
    used: _timestamp_pb2.Timestamp
    revoked: bool
    note: str
    def __init__(self, id: _Optional[str] = ..., user: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., used: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., revoked: _Optional[bool] = ..., note: _Optional[str] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    __slots__ = ("user", "role", "valid_s", "note")
    USER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    VALID_S_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    user: str
    role: Role
    valid_s: float
    note: str
    def __init__(self, user: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., valid_s: _Optional[float] = ..., note: _Optional[str] = ...) -> None: ...

class CreateTokenResponse(_message.Message):
    __slots__ = ("token", "secret")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    token: Token
    secret: str
    def __init__(self, token: _Optional[_Union[Token, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class ListTokensRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class ListTokensResponse(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    def __init__(self, tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class CreateJoinTokenRequest(_message.Message):
    __slots__ = ("node", "valid_s")
    NODE_FIELD_NUMBER: _ClassVar[int]
    VALID_S_FIELD_NUMBER: _ClassVar[int]
    node: str
    valid_s: float
    def __init__(self, node: _Optional[str] = ..., valid_s: _Optional[float] = ...) -> None: ...

class CreateJoinTokenResponse(_message.Message):
    __slots__ = ("secret", "expires", "ca_fingerprint")
    SECRET_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    CA_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    secret: str
    expires: _timestamp_pb2.Timestamp
    ca_fingerprint: str
    def __init__(self, secret: _Optional[str] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ca_fingerprint: _Optional[str] = ...) -> None: ...

class RevokeNodeRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class RevokeNodeResponse(_message.Message):
    __slots__ = ("node", "was_linked")
    NODE_FIELD_NUMBER: _ClassVar[int]
    WAS_LINKED_FIELD_NUMBER: _ClassVar[int]
    node: str
    was_linked: bool
    def __init__(self, node: _Optional[str] = ..., was_linked: _Optional[bool] = ...) -> None: ...

class ListRevokedNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRevokedNodesResponse(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeRevocation]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeRevocation, _Mapping]]] = ...) -> None: ...

class NodeRevocation(_message.Message):
    __slots__ = ("node", "revoked", "joined_again")
    NODE_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    JOINED_AGAIN_FIELD_NUMBER: _ClassVar[int]
    node: str
    revoked: _timestamp_pb2.Timestamp
    joined_again: bool
    def __init__(self, node: _Optional[str] = ..., revoked: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., joined_again: _Optional[bool] = ...) -> None: ...

class UnrevokeNodeRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class UnrevokeNodeResponse(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...
