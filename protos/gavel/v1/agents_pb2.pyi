from protos.gavel.v1 import jobs_pb2 as _jobs_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("node", "token", "certificate_request_pem")
    NODE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REQUEST_PEM_FIELD_NUMBER: _ClassVar[int]
    node: str
    token: str
    certificate_request_pem: bytes
    def __init__(self, node: _Optional[str] = ..., token: _Optional[str] = ..., certificate_request_pem: _Optional[bytes] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("certificate_pem", "ca_pem", "agents_address")
    CERTIFICATE_PEM_FIELD_NUMBER: _ClassVar[int]
    CA_PEM_FIELD_NUMBER: _ClassVar[int]
    AGENTS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    certificate_pem: bytes
    ca_pem: bytes
    agents_address: str
    def __init__(self, certificate_pem: _Optional[bytes] = ..., ca_pem: _Optional[bytes] = ..., agents_address: _Optional[str] = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("hello", "report", "gang_ready", "health", "storage_checked", "alive", "leaving", "gang_preparing", "cache_content", "sent_s")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    GANG_READY_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    STORAGE_CHECKED_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    GANG_PREPARING_FIELD_NUMBER: _ClassVar[int]
    CACHE_CONTENT_FIELD_NUMBER: _ClassVar[int]
    SENT_S_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    report: Report
    gang_ready: GangReady
    health: Health
    storage_checked: StorageChecked
    alive: Alive
    leaving: Leaving
    gang_preparing: GangPreparing
    cache_content: CacheContent
    sent_s: float
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., gang_ready: _Optional[_Union[GangReady, _Mapping]] = ..., health: _Optional[_Union[Health, _Mapping]] = ..., storage_checked: _Optional[_Union[StorageChecked, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., gang_preparing: _Optional[_Union[GangPreparing, _Mapping]] = ..., cache_content: _Optional[_Union[CacheContent, _Mapping]] = ..., sent_s: _Optional[float] = ...) -> None: ...

class SchedulerMessage(_message.Message):
    __slots__ = ("welcome", "desired", "renewed", "taken", "gang_go", "logs_wanted", "storage_check", "goodbye", "alive", "let_go", "files_wanted", "connection_wanted", "agent_s")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    GANG_GO_FIELD_NUMBER: _ClassVar[int]
    LOGS_WANTED_FIELD_NUMBER: _ClassVar[int]
    STORAGE_CHECK_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    LET_GO_FIELD_NUMBER: _ClassVar[int]
    FILES_WANTED_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_WANTED_FIELD_NUMBER: _ClassVar[int]
    AGENT_S_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    desired: Desired
    renewed: Renewed
    taken: Taken
    gang_go: GangGo
    logs_wanted: LogsWanted
    storage_check: StorageCheck
    goodbye: Goodbye
    alive: Alive
    let_go: LetGo
    files_wanted: FilesWanted
    connection_wanted: ConnectionWanted
    agent_s: float
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., desired: _Optional[_Union[Desired, _Mapping]] = ..., renewed: _Optional[_Union[Renewed, _Mapping]] = ..., taken: _Optional[_Union[Taken, _Mapping]] = ..., gang_go: _Optional[_Union[GangGo, _Mapping]] = ..., logs_wanted: _Optional[_Union[LogsWanted, _Mapping]] = ..., storage_check: _Optional[_Union[StorageCheck, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ..., let_go: _Optional[_Union[LetGo, _Mapping]] = ..., files_wanted: _Optional[_Union[FilesWanted, _Mapping]] = ..., connection_wanted: _Optional[_Union[ConnectionWanted, _Mapping]] = ..., agent_s: _Optional[float] = ...) -> None: ...

class LetGo(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Alive(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "agent_version", "node", "incarnation", "worker_type", "gpus", "labels", "cpus", "memory_gb", "storage_id", "held", "driver_version", "speed", "lease_grace_s", "address", "containment", "trouble", "sends_files", "takes_plans", "has_cache")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WORKER_TYPE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    STORAGE_ID_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    LEASE_GRACE_S_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONTAINMENT_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    SENDS_FILES_FIELD_NUMBER: _ClassVar[int]
    TAKES_PLANS_FIELD_NUMBER: _ClassVar[int]
    HAS_CACHE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    agent_version: str
    node: str
    incarnation: str
    worker_type: str
    gpus: _containers.RepeatedCompositeFieldContainer[InventoryGpu]
    labels: _containers.ScalarMap[str, str]
    cpus: float
    memory_gb: float
    storage_id: str
    held: _containers.RepeatedCompositeFieldContainer[HeldLease]
    driver_version: str
    speed: float
    lease_grace_s: float
    address: str
    containment: str
    trouble: str
    sends_files: bool
    takes_plans: bool
    has_cache: bool
    def __init__(self, protocol: _Optional[int] = ..., agent_version: _Optional[str] = ..., node: _Optional[str] = ..., incarnation: _Optional[str] = ..., worker_type: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[InventoryGpu, _Mapping]]] = ..., labels: _Optional[_Mapping[str, str]] = ..., cpus: _Optional[float] = ..., memory_gb: _Optional[float] = ..., storage_id: _Optional[str] = ..., held: _Optional[_Iterable[_Union[HeldLease, _Mapping]]] = ..., driver_version: _Optional[str] = ..., speed: _Optional[float] = ..., lease_grace_s: _Optional[float] = ..., address: _Optional[str] = ..., containment: _Optional[str] = ..., trouble: _Optional[str] = ..., sends_files: _Optional[bool] = ..., takes_plans: _Optional[bool] = ..., has_cache: _Optional[bool] = ...) -> None: ...

class InventoryGpu(_message.Message):
    __slots__ = ("index", "name", "uuid", "memory_gb")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    uuid: str
    memory_gb: float
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., uuid: _Optional[str] = ..., memory_gb: _Optional[float] = ...) -> None: ...

class HeldLease(_message.Message):
    __slots__ = ("lease", "steps", "ran_s")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    RAN_S_FIELD_NUMBER: _ClassVar[int]
    lease: str
    steps: float
    ran_s: float
    def __init__(self, lease: _Optional[str] = ..., steps: _Optional[float] = ..., ran_s: _Optional[float] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "scheduler_version", "report_interval_s", "silence_s")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_VERSION_FIELD_NUMBER: _ClassVar[int]
    REPORT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    SILENCE_S_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    scheduler_version: str
    report_interval_s: float
    silence_s: float
    def __init__(self, epoch: _Optional[int] = ..., scheduler_version: _Optional[str] = ..., report_interval_s: _Optional[float] = ..., silence_s: _Optional[float] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason", "text")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    text: str
    def __init__(self, reason: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("lease", "job", "attempt", "epoch", "gpus", "ends_in_s", "node_rank", "nodes", "rank_first", "gpus_total", "master_address", "steps_max", "name", "user", "launch", "array_index", "worker_type", "packed", "memory_gb", "cpus", "last", "plan", "extra_save_s", "mtbf_s", "workers")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    ENDS_IN_S_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIRST_FIELD_NUMBER: _ClassVar[int]
    GPUS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STEPS_MAX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    ARRAY_INDEX_FIELD_NUMBER: _ClassVar[int]
    WORKER_TYPE_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    EXTRA_SAVE_S_FIELD_NUMBER: _ClassVar[int]
    MTBF_S_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    lease: str
    job: str
    attempt: int
    epoch: int
    gpus: _containers.RepeatedScalarFieldContainer[int]
    ends_in_s: float
    node_rank: int
    nodes: int
    rank_first: int
    gpus_total: int
    master_address: str
    steps_max: float
    name: str
    user: str
    launch: _jobs_pb2.Launch
    array_index: int
    worker_type: str
    packed: bool
    memory_gb: float
    cpus: float
    last: bool
    plan: str
    extra_save_s: float
    mtbf_s: float
    workers: int
    def __init__(self, lease: _Optional[str] = ..., job: _Optional[str] = ..., attempt: _Optional[int] = ..., epoch: _Optional[int] = ..., gpus: _Optional[_Iterable[int]] = ..., ends_in_s: _Optional[float] = ..., node_rank: _Optional[int] = ..., nodes: _Optional[int] = ..., rank_first: _Optional[int] = ..., gpus_total: _Optional[int] = ..., master_address: _Optional[str] = ..., steps_max: _Optional[float] = ..., name: _Optional[str] = ..., user: _Optional[str] = ..., launch: _Optional[_Union[_jobs_pb2.Launch, _Mapping]] = ..., array_index: _Optional[int] = ..., worker_type: _Optional[str] = ..., packed: _Optional[bool] = ..., memory_gb: _Optional[float] = ..., cpus: _Optional[float] = ..., last: _Optional[bool] = ..., plan: _Optional[str] = ..., extra_save_s: _Optional[float] = ..., mtbf_s: _Optional[float] = ..., workers: _Optional[int] = ...) -> None: ...

class Desired(_message.Message):
    __slots__ = ("epoch", "generation", "round_number", "orders", "why_ended")
    class WhyEndedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    WHY_ENDED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    generation: int
    round_number: int
    orders: _containers.RepeatedCompositeFieldContainer[Order]
    why_ended: _containers.ScalarMap[str, str]
    def __init__(self, epoch: _Optional[int] = ..., generation: _Optional[int] = ..., round_number: _Optional[int] = ..., orders: _Optional[_Iterable[_Union[Order, _Mapping]]] = ..., why_ended: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Renewed(_message.Message):
    __slots__ = ("epoch", "generation", "round_number", "ends_in_s")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENDS_IN_S_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    generation: int
    round_number: int
    ends_in_s: float
    def __init__(self, epoch: _Optional[int] = ..., generation: _Optional[int] = ..., round_number: _Optional[int] = ..., ends_in_s: _Optional[float] = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("number", "generation", "started", "progress", "exits", "measured")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    EXITS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    number: int
    generation: int
    started: _containers.RepeatedScalarFieldContainer[str]
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    exits: _containers.RepeatedCompositeFieldContainer[Exit]
    measured: _containers.RepeatedCompositeFieldContainer[Measured]
    def __init__(self, number: _Optional[int] = ..., generation: _Optional[int] = ..., started: _Optional[_Iterable[str]] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ..., exits: _Optional[_Iterable[_Union[Exit, _Mapping]]] = ..., measured: _Optional[_Iterable[_Union[Measured, _Mapping]]] = ...) -> None: ...

class Measured(_message.Message):
    __slots__ = ("lease", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    LEASE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    lease: str
    values: _containers.ScalarMap[str, float]
    def __init__(self, lease: _Optional[str] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("lease", "steps", "saved", "stepping_s")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    STEPPING_S_FIELD_NUMBER: _ClassVar[int]
    lease: str
    steps: float
    saved: float
    stepping_s: float
    def __init__(self, lease: _Optional[str] = ..., steps: _Optional[float] = ..., saved: _Optional[float] = ..., stepping_s: _Optional[float] = ...) -> None: ...

class Exit(_message.Message):
    __slots__ = ("lease", "outcome", "steps", "saved", "stepping_s", "ran_s", "code", "last_lines")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[Exit.Outcome]
        OUTCOME_FINISHED: _ClassVar[Exit.Outcome]
        OUTCOME_YIELDED: _ClassVar[Exit.Outcome]
        OUTCOME_FAILED: _ClassVar[Exit.Outcome]
        OUTCOME_NODE_FAILED: _ClassVar[Exit.Outcome]
    OUTCOME_UNSPECIFIED: Exit.Outcome
    OUTCOME_FINISHED: Exit.Outcome
    OUTCOME_YIELDED: Exit.Outcome
    OUTCOME_FAILED: Exit.Outcome
    OUTCOME_NODE_FAILED: Exit.Outcome
    LEASE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    STEPPING_S_FIELD_NUMBER: _ClassVar[int]
    RAN_S_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    LAST_LINES_FIELD_NUMBER: _ClassVar[int]
    lease: str
    outcome: Exit.Outcome
    steps: float
    saved: float
    stepping_s: float
    ran_s: float
    code: int
    last_lines: str
    def __init__(self, lease: _Optional[str] = ..., outcome: _Optional[_Union[Exit.Outcome, str]] = ..., steps: _Optional[float] = ..., saved: _Optional[float] = ..., stepping_s: _Optional[float] = ..., ran_s: _Optional[float] = ..., code: _Optional[int] = ..., last_lines: _Optional[str] = ...) -> None: ...

class Health(_message.Message):
    __slots__ = ("gpus", "driver_version", "trouble", "idle")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedCompositeFieldContainer[GpuHealth]
    driver_version: str
    trouble: str
    idle: _containers.RepeatedCompositeFieldContainer[IdleLease]
    def __init__(self, gpus: _Optional[_Iterable[_Union[GpuHealth, _Mapping]]] = ..., driver_version: _Optional[str] = ..., trouble: _Optional[str] = ..., idle: _Optional[_Iterable[_Union[IdleLease, _Mapping]]] = ...) -> None: ...

class CacheContent(_message.Message):
    __slots__ = ("cached", "named")
    CACHED_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    cached: _containers.RepeatedCompositeFieldContainer[CachedData]
    named: _containers.RepeatedCompositeFieldContainer[NamedData]
    def __init__(self, cached: _Optional[_Iterable[_Union[CachedData, _Mapping]]] = ..., named: _Optional[_Iterable[_Union[NamedData, _Mapping]]] = ...) -> None: ...

class CachedData(_message.Message):
    __slots__ = ("user", "key", "used_bytes")
    USER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    user: str
    key: str
    used_bytes: int
    def __init__(self, user: _Optional[str] = ..., key: _Optional[str] = ..., used_bytes: _Optional[int] = ...) -> None: ...

class NamedData(_message.Message):
    __slots__ = ("lease", "key", "size_bytes")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    lease: str
    key: str
    size_bytes: int
    def __init__(self, lease: _Optional[str] = ..., key: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class IdleLease(_message.Message):
    __slots__ = ("lease", "idle_s")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    lease: str
    idle_s: float
    def __init__(self, lease: _Optional[str] = ..., idle_s: _Optional[float] = ...) -> None: ...

class GpuHealth(_message.Message):
    __slots__ = ("index", "memory_used_gb", "temperature_c", "broken", "withheld")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_GB_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    index: int
    memory_used_gb: float
    temperature_c: float
    broken: str
    withheld: str
    def __init__(self, index: _Optional[int] = ..., memory_used_gb: _Optional[float] = ..., temperature_c: _Optional[float] = ..., broken: _Optional[str] = ..., withheld: _Optional[str] = ...) -> None: ...

class GangPreparing(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: str
    def __init__(self, lease: _Optional[str] = ...) -> None: ...

class GangReady(_message.Message):
    __slots__ = ("lease", "master_port", "coordinator_port", "failed", "cache_port", "cache_secret")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_PORT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CACHE_PORT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SECRET_FIELD_NUMBER: _ClassVar[int]
    lease: str
    master_port: int
    coordinator_port: int
    failed: str
    cache_port: int
    cache_secret: str
    def __init__(self, lease: _Optional[str] = ..., master_port: _Optional[int] = ..., coordinator_port: _Optional[int] = ..., failed: _Optional[str] = ..., cache_port: _Optional[int] = ..., cache_secret: _Optional[str] = ...) -> None: ...

class GangGo(_message.Message):
    __slots__ = ("lease", "master_address", "master_port", "coordinator_port", "failed", "cache_nodes", "cache_secret")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_PORT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CACHE_NODES_FIELD_NUMBER: _ClassVar[int]
    CACHE_SECRET_FIELD_NUMBER: _ClassVar[int]
    lease: str
    master_address: str
    master_port: int
    coordinator_port: int
    failed: str
    cache_nodes: _containers.RepeatedCompositeFieldContainer[CacheNode]
    cache_secret: str
    def __init__(self, lease: _Optional[str] = ..., master_address: _Optional[str] = ..., master_port: _Optional[int] = ..., coordinator_port: _Optional[int] = ..., failed: _Optional[str] = ..., cache_nodes: _Optional[_Iterable[_Union[CacheNode, _Mapping]]] = ..., cache_secret: _Optional[str] = ...) -> None: ...

class CacheNode(_message.Message):
    __slots__ = ("node", "address", "port")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    node: str
    address: str
    port: int
    def __init__(self, node: _Optional[str] = ..., address: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class LogsWanted(_message.Message):
    __slots__ = ("call", "job", "attempt", "rank", "tail_lines", "follow", "stop", "lease")
    CALL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TAIL_LINES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    call: str
    job: str
    attempt: int
    rank: int
    tail_lines: int
    follow: bool
    stop: bool
    lease: str
    def __init__(self, call: _Optional[str] = ..., job: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., tail_lines: _Optional[int] = ..., follow: _Optional[bool] = ..., stop: _Optional[bool] = ..., lease: _Optional[str] = ...) -> None: ...

class SentLogs(_message.Message):
    __slots__ = ("call", "chunk", "end", "error")
    CALL_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    call: str
    chunk: _jobs_pb2.LogChunk
    end: bool
    error: str
    def __init__(self, call: _Optional[str] = ..., chunk: _Optional[_Union[_jobs_pb2.LogChunk, _Mapping]] = ..., end: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class SendLogsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConnectionWanted(_message.Message):
    __slots__ = ("call", "lease", "open", "stop")
    CALL_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    call: str
    lease: str
    open: _jobs_pb2.OpenConnection
    stop: bool
    def __init__(self, call: _Optional[str] = ..., lease: _Optional[str] = ..., open: _Optional[_Union[_jobs_pb2.OpenConnection, _Mapping]] = ..., stop: _Optional[bool] = ...) -> None: ...

class FromNode(_message.Message):
    __slots__ = ("call", "message", "error")
    CALL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    call: str
    message: _jobs_pb2.FromJob
    error: str
    def __init__(self, call: _Optional[str] = ..., message: _Optional[_Union[_jobs_pb2.FromJob, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class FilesWanted(_message.Message):
    __slots__ = ("call", "stop", "lease", "user", "checkpoint_dir", "list", "fetch")
    CALL_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIR_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    call: str
    stop: bool
    lease: str
    user: str
    checkpoint_dir: str
    list: _jobs_pb2.ListFilesRequest
    fetch: _jobs_pb2.FetchFilesRequest
    def __init__(self, call: _Optional[str] = ..., stop: _Optional[bool] = ..., lease: _Optional[str] = ..., user: _Optional[str] = ..., checkpoint_dir: _Optional[str] = ..., list: _Optional[_Union[_jobs_pb2.ListFilesRequest, _Mapping]] = ..., fetch: _Optional[_Union[_jobs_pb2.FetchFilesRequest, _Mapping]] = ...) -> None: ...

class SentFiles(_message.Message):
    __slots__ = ("call", "list", "piece", "end", "error")
    CALL_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    call: str
    list: _jobs_pb2.FileList
    piece: _jobs_pb2.FilePiece
    end: bool
    error: str
    def __init__(self, call: _Optional[str] = ..., list: _Optional[_Union[_jobs_pb2.FileList, _Mapping]] = ..., piece: _Optional[_Union[_jobs_pb2.FilePiece, _Mapping]] = ..., end: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class SendFilesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StorageCheck(_message.Message):
    __slots__ = ("check", "action", "nonce")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[StorageCheck.Action]
        ACTION_WRITE: _ClassVar[StorageCheck.Action]
        ACTION_READ: _ClassVar[StorageCheck.Action]
        ACTION_REMOVE: _ClassVar[StorageCheck.Action]
    ACTION_UNSPECIFIED: StorageCheck.Action
    ACTION_WRITE: StorageCheck.Action
    ACTION_READ: StorageCheck.Action
    ACTION_REMOVE: StorageCheck.Action
    CHECK_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    check: str
    action: StorageCheck.Action
    nonce: str
    def __init__(self, check: _Optional[str] = ..., action: _Optional[_Union[StorageCheck.Action, str]] = ..., nonce: _Optional[str] = ...) -> None: ...

class StorageChecked(_message.Message):
    __slots__ = ("check", "found", "error")
    CHECK_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    check: str
    found: bool
    error: str
    def __init__(self, check: _Optional[str] = ..., found: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class FetchPackageRequest(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    def __init__(self, digest: _Optional[str] = ...) -> None: ...

class PackageData(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
