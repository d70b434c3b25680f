import datetime

from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_QUEUED: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_PREEMPTED: _ClassVar[JobState]
    JOB_STATE_HELD: _ClassVar[JobState]
    JOB_STATE_COMPLETED: _ClassVar[JobState]
    JOB_STATE_FAILED: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_QUEUED: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_PREEMPTED: JobState
JOB_STATE_HELD: JobState
JOB_STATE_COMPLETED: JobState
JOB_STATE_FAILED: JobState
JOB_STATE_CANCELLED: JobState

class JobSpec(_message.Message):
    __slots__ = ("name", "job_type", "gpus", "gpus_min", "gpus_max", "steps", "weight", "tenant", "user", "deadline_s", "earliest_start_s", "time_limit_s", "min_run_s", "worker_types", "excluded_worker_types", "nodes", "labels", "cpus", "memory_gb", "gpu_memory_gb", "retries", "retries_node", "retries_preemption", "preemptible", "packable", "reports_steps", "restart_cost_s", "rates", "after", "array", "max_cost", "launch", "plans", "gpus_together", "plans_from", "notify", "idle_ok")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_TYPE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPUS_MIN_FIELD_NUMBER: _ClassVar[int]
    GPUS_MAX_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_START_S_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    MIN_RUN_S_FIELD_NUMBER: _ClassVar[int]
    WORKER_TYPES_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_WORKER_TYPES_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    RETRIES_NODE_FIELD_NUMBER: _ClassVar[int]
    RETRIES_PREEMPTION_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    PACKABLE_FIELD_NUMBER: _ClassVar[int]
    REPORTS_STEPS_FIELD_NUMBER: _ClassVar[int]
    RESTART_COST_S_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    MAX_COST_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    GPUS_TOGETHER_FIELD_NUMBER: _ClassVar[int]
    PLANS_FROM_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_FIELD_NUMBER: _ClassVar[int]
    IDLE_OK_FIELD_NUMBER: _ClassVar[int]
    name: str
    job_type: str
    gpus: int
    gpus_min: int
    gpus_max: int
    steps: float
    weight: float
    tenant: str
    user: str
    deadline_s: float
    earliest_start_s: float
    time_limit_s: float
    min_run_s: float
    worker_types: _containers.RepeatedScalarFieldContainer[str]
    excluded_worker_types: _containers.RepeatedScalarFieldContainer[str]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.ScalarMap[str, str]
    cpus: float
    memory_gb: float
    gpu_memory_gb: float
    retries: int
    retries_node: int
    retries_preemption: int
    preemptible: bool
    packable: bool
    reports_steps: bool
    restart_cost_s: float
    rates: _containers.ScalarMap[str, float]
    after: _containers.RepeatedCompositeFieldContainer[Dependency]
    array: _containers.RepeatedScalarFieldContainer[int]
    max_cost: float
    launch: Launch
    plans: _containers.RepeatedCompositeFieldContainer[Plan]
    gpus_together: int
    plans_from: str
    notify: _containers.RepeatedCompositeFieldContainer[Notify]
    idle_ok: bool
    def __init__(self, name: _Optional[str] = ..., job_type: _Optional[str] = ..., gpus: _Optional[int] = ..., gpus_min: _Optional[int] = ..., gpus_max: _Optional[int] = ..., steps: _Optional[float] = ..., weight: _Optional[float] = ..., tenant: _Optional[str] = ..., user: _Optional[str] = ..., deadline_s: _Optional[float] = ..., earliest_start_s: _Optional[float] = ..., time_limit_s: _Optional[float] = ..., min_run_s: _Optional[float] = ..., worker_types: _Optional[_Iterable[str]] = ..., excluded_worker_types: _Optional[_Iterable[str]] = ..., nodes: _Optional[_Iterable[str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., cpus: _Optional[float] = ..., memory_gb: _Optional[float] = ..., gpu_memory_gb: _Optional[float] = ..., retries: _Optional[int] = ..., retries_node: _Optional[int] = ..., retries_preemption: _Optional[int] = ..., preemptible: _Optional[bool] = ..., packable: _Optional[bool] = ..., reports_steps: _Optional[bool] = ..., restart_cost_s: _Optional[float] = ..., rates: _Optional[_Mapping[str, float]] = ..., after: _Optional[_Iterable[_Union[Dependency, _Mapping]]] = ..., array: _Optional[_Iterable[int]] = ..., max_cost: _Optional[float] = ..., launch: _Optional[_Union[Launch, _Mapping]] = ..., plans: _Optional[_Iterable[_Union[Plan, _Mapping]]] = ..., gpus_together: _Optional[int] = ..., plans_from: _Optional[str] = ..., notify: _Optional[_Iterable[_Union[Notify, _Mapping]]] = ..., idle_ok: _Optional[bool] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("worker_type", "gpus", "label", "rate", "memory_gb", "document", "gpus_together", "exchange")
    WORKER_TYPE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    GPUS_TOGETHER_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    worker_type: str
    gpus: int
    label: str
    rate: float
    memory_gb: float
    document: str
    gpus_together: int
    exchange: float
    def __init__(self, worker_type: _Optional[str] = ..., gpus: _Optional[int] = ..., label: _Optional[str] = ..., rate: _Optional[float] = ..., memory_gb: _Optional[float] = ..., document: _Optional[str] = ..., gpus_together: _Optional[int] = ..., exchange: _Optional[float] = ...) -> None: ...

class Dependency(_message.Message):
    __slots__ = ("job", "when")
    class When(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WHEN_UNSPECIFIED: _ClassVar[Dependency.When]
        WHEN_SUCCEEDED: _ClassVar[Dependency.When]
        WHEN_ENDED: _ClassVar[Dependency.When]
    WHEN_UNSPECIFIED: Dependency.When
    WHEN_SUCCEEDED: Dependency.When
    WHEN_ENDED: Dependency.When
    JOB_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    job: str
    when: Dependency.When
    def __init__(self, job: _Optional[str] = ..., when: _Optional[_Union[Dependency.When, str]] = ...) -> None: ...

class Notify(_message.Message):
    __slots__ = ("to", "on")
    TO_FIELD_NUMBER: _ClassVar[int]
    ON_FIELD_NUMBER: _ClassVar[int]
    to: str
    on: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, to: _Optional[str] = ..., on: _Optional[_Iterable[str]] = ...) -> None: ...

class Launch(_message.Message):
    __slots__ = ("command", "script", "setup", "venv", "workdir", "upload", "env", "env_from", "checkpoint_dir", "ranks", "checkpoints", "setup_limit_s", "container", "outputs", "terminal")
    class Ranks(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RANKS_UNSPECIFIED: _ClassVar[Launch.Ranks]
        RANKS_PER_GPU: _ClassVar[Launch.Ranks]
        RANKS_PER_NODE: _ClassVar[Launch.Ranks]
    RANKS_UNSPECIFIED: Launch.Ranks
    RANKS_PER_GPU: Launch.Ranks
    RANKS_PER_NODE: Launch.Ranks
    class Checkpoints(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CHECKPOINTS_UNSPECIFIED: _ClassVar[Launch.Checkpoints]
        CHECKPOINTS_PER_JOB: _ClassVar[Launch.Checkpoints]
        CHECKPOINTS_PER_ATTEMPT: _ClassVar[Launch.Checkpoints]
    CHECKPOINTS_UNSPECIFIED: Launch.Checkpoints
    CHECKPOINTS_PER_JOB: Launch.Checkpoints
    CHECKPOINTS_PER_ATTEMPT: Launch.Checkpoints
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class EnvFromEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    SETUP_FIELD_NUMBER: _ClassVar[int]
    VENV_FIELD_NUMBER: _ClassVar[int]
    WORKDIR_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    ENV_FROM_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIR_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    SETUP_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    command: _containers.RepeatedScalarFieldContainer[str]
    script: str
    setup: str
    venv: str
    workdir: str
    upload: str
    env: _containers.ScalarMap[str, str]
    env_from: _containers.ScalarMap[str, str]
    checkpoint_dir: str
    ranks: Launch.Ranks
    checkpoints: Launch.Checkpoints
    setup_limit_s: float
    container: Container
    outputs: _containers.RepeatedScalarFieldContainer[str]
    terminal: Terminal
    def __init__(self, command: _Optional[_Iterable[str]] = ..., script: _Optional[str] = ..., setup: _Optional[str] = ..., venv: _Optional[str] = ..., workdir: _Optional[str] = ..., upload: _Optional[str] = ..., env: _Optional[_Mapping[str, str]] = ..., env_from: _Optional[_Mapping[str, str]] = ..., checkpoint_dir: _Optional[str] = ..., ranks: _Optional[_Union[Launch.Ranks, str]] = ..., checkpoints: _Optional[_Union[Launch.Checkpoints, str]] = ..., setup_limit_s: _Optional[float] = ..., container: _Optional[_Union[Container, _Mapping]] = ..., outputs: _Optional[_Iterable[str]] = ..., terminal: _Optional[_Union[Terminal, _Mapping]] = ...) -> None: ...

class Terminal(_message.Message):
    __slots__ = ("tty", "rows", "columns", "keep_s")
    TTY_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    KEEP_S_FIELD_NUMBER: _ClassVar[int]
    tty: bool
    rows: int
    columns: int
    keep_s: float
    def __init__(self, tty: _Optional[bool] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ..., keep_s: _Optional[float] = ...) -> None: ...

class Container(_message.Message):
    __slots__ = ("image", "runtime", "mounts", "env")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    MOUNTS_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    image: str
    runtime: str
    mounts: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.ScalarMap[str, str]
    def __init__(self, image: _Optional[str] = ..., runtime: _Optional[str] = ..., mounts: _Optional[_Iterable[str]] = ..., env: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SubmitJobsRequest(_message.Message):
    __slots__ = ("specs", "idempotency_key")
    SPECS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    specs: _containers.RepeatedCompositeFieldContainer[JobSpec]
    idempotency_key: str
    def __init__(self, specs: _Optional[_Iterable[_Union[JobSpec, _Mapping]]] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class SubmitJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class PreviewJobsRequest(_message.Message):
    __slots__ = ("specs",)
    SPECS_FIELD_NUMBER: _ClassVar[int]
    specs: _containers.RepeatedCompositeFieldContainer[JobSpec]
    def __init__(self, specs: _Optional[_Iterable[_Union[JobSpec, _Mapping]]] = ...) -> None: ...

class PreviewJobsResponse(_message.Message):
    __slots__ = ("previews",)
    PREVIEWS_FIELD_NUMBER: _ClassVar[int]
    previews: _containers.RepeatedCompositeFieldContainer[Preview]
    def __init__(self, previews: _Optional[_Iterable[_Union[Preview, _Mapping]]] = ...) -> None: ...

class Preview(_message.Message):
    __slots__ = ("accepted", "refused_field", "refused_why", "places", "expected_start", "text")
    class Place(_message.Message):
        __slots__ = ("worker_type", "gpus", "gpus_fitting", "gpus_free", "rate", "rate_guessed", "nodes")
        WORKER_TYPE_FIELD_NUMBER: _ClassVar[int]
        GPUS_FIELD_NUMBER: _ClassVar[int]
        GPUS_FITTING_FIELD_NUMBER: _ClassVar[int]
        GPUS_FREE_FIELD_NUMBER: _ClassVar[int]
        RATE_FIELD_NUMBER: _ClassVar[int]
        RATE_GUESSED_FIELD_NUMBER: _ClassVar[int]
        NODES_FIELD_NUMBER: _ClassVar[int]
        worker_type: str
        gpus: int
        gpus_fitting: int
        gpus_free: int
        rate: float
        rate_guessed: bool
        nodes: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, worker_type: _Optional[str] = ..., gpus: _Optional[int] = ..., gpus_fitting: _Optional[int] = ..., gpus_free: _Optional[int] = ..., rate: _Optional[float] = ..., rate_guessed: _Optional[bool] = ..., nodes: _Optional[_Iterable[str]] = ...) -> None: ...
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_FIELD_NUMBER: _ClassVar[int]
    REFUSED_WHY_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_START_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    refused_field: str
    refused_why: str
    places: _containers.RepeatedCompositeFieldContainer[Preview.Place]
    expected_start: _timestamp_pb2.Timestamp
    text: str
    def __init__(self, accepted: _Optional[bool] = ..., refused_field: _Optional[str] = ..., refused_why: _Optional[str] = ..., places: _Optional[_Iterable[_Union[Preview.Place, _Mapping]]] = ..., expected_start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., text: _Optional[str] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "spec", "state", "why", "submitted", "started", "ended", "steps_done", "steps_saved", "run_s", "attempt", "failures", "node_failures", "preemptions", "cost", "blocked_by", "placement", "exit_code", "last_lines", "time_s", "array_index", "gpu_s", "nodes", "measured")
    class TimeSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class GpuSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class MeasuredEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    STEPS_SAVED_FIELD_NUMBER: _ClassVar[int]
    RUN_S_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    NODE_FAILURES_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_BY_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    LAST_LINES_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    ARRAY_INDEX_FIELD_NUMBER: _ClassVar[int]
    GPU_S_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    id: str
    spec: JobSpec
    state: JobState
    why: str
    submitted: _timestamp_pb2.Timestamp
    started: _timestamp_pb2.Timestamp
    ended: _timestamp_pb2.Timestamp
    steps_done: float
    steps_saved: float
    run_s: float
    attempt: int
    failures: int
    node_failures: int
    preemptions: int
    cost: float
    blocked_by: _containers.RepeatedScalarFieldContainer[str]
    placement: Placement
    exit_code: int
    last_lines: str
    time_s: _containers.ScalarMap[str, float]
    array_index: int
    gpu_s: _containers.ScalarMap[str, float]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    measured: _containers.ScalarMap[str, float]
    def __init__(self, id: _Optional[str] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., state: _Optional[_Union[JobState, str]] = ..., why: _Optional[str] = ..., submitted: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., steps_done: _Optional[float] = ..., steps_saved: _Optional[float] = ..., run_s: _Optional[float] = ..., attempt: _Optional[int] = ..., failures: _Optional[int] = ..., node_failures: _Optional[int] = ..., preemptions: _Optional[int] = ..., cost: _Optional[float] = ..., blocked_by: _Optional[_Iterable[str]] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., exit_code: _Optional[int] = ..., last_lines: _Optional[str] = ..., time_s: _Optional[_Mapping[str, float]] = ..., array_index: _Optional[int] = ..., gpu_s: _Optional[_Mapping[str, float]] = ..., nodes: _Optional[_Iterable[str]] = ..., measured: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("worker_type", "gpus", "with_job", "since", "until", "phase", "lease", "rate", "plan", "idle_since", "terminal", "packed_rate")
    WORKER_TYPE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    WITH_JOB_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    IDLE_SINCE_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    PACKED_RATE_FIELD_NUMBER: _ClassVar[int]
    worker_type: str
    gpus: _containers.RepeatedScalarFieldContainer[str]
    with_job: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    phase: str
    lease: str
    rate: float
    plan: str
    idle_since: _timestamp_pb2.Timestamp
    terminal: TerminalUse
    packed_rate: PackedRate
    def __init__(self, worker_type: _Optional[str] = ..., gpus: _Optional[_Iterable[str]] = ..., with_job: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., phase: _Optional[str] = ..., lease: _Optional[str] = ..., rate: _Optional[float] = ..., plan: _Optional[str] = ..., idle_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., terminal: _Optional[_Union[TerminalUse, _Mapping]] = ..., packed_rate: _Optional[_Union[PackedRate, _Mapping]] = ...) -> None: ...

class PackedRate(_message.Message):
    __slots__ = ("steps_per_s", "source", "sd_steps_per_s")
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SD_STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    steps_per_s: float
    source: str
    sd_steps_per_s: float
    def __init__(self, steps_per_s: _Optional[float] = ..., source: _Optional[str] = ..., sd_steps_per_s: _Optional[float] = ...) -> None: ...

class TerminalUse(_message.Message):
    __slots__ = ("attached", "keep_s", "until")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    KEEP_S_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    attached: bool
    keep_s: float
    until: _timestamp_pb2.Timestamp
    def __init__(self, attached: _Optional[bool] = ..., keep_s: _Optional[float] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class JobFilter(_message.Message):
    __slots__ = ("states", "jobs", "user", "tenant", "name", "job_type", "worker_type", "node", "submitted_since", "ended", "ended_since")
    STATES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_TYPE_FIELD_NUMBER: _ClassVar[int]
    WORKER_TYPE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_SINCE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ENDED_SINCE_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[JobState]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    user: str
    tenant: str
    name: str
    job_type: str
    worker_type: str
    node: str
    submitted_since: _timestamp_pb2.Timestamp
    ended: bool
    ended_since: _timestamp_pb2.Timestamp
    def __init__(self, states: _Optional[_Iterable[_Union[JobState, str]]] = ..., jobs: _Optional[_Iterable[str]] = ..., user: _Optional[str] = ..., tenant: _Optional[str] = ..., name: _Optional[str] = ..., job_type: _Optional[str] = ..., worker_type: _Optional[str] = ..., node: _Optional[str] = ..., submitted_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended: _Optional[bool] = ..., ended_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("filter", "page_size", "page_token", "brief")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    filter: JobFilter
    page_size: int
    page_token: str
    brief: bool
    def __init__(self, filter: _Optional[_Union[JobFilter, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., brief: _Optional[bool] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token", "total")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    next_page_token: str
    total: int
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., total: _Optional[int] = ...) -> None: ...

class WatchJobsRequest(_message.Message):
    __slots__ = ("filter", "skip_present")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    SKIP_PRESENT_FIELD_NUMBER: _ClassVar[int]
    filter: JobFilter
    skip_present: bool
    def __init__(self, filter: _Optional[_Union[JobFilter, _Mapping]] = ..., skip_present: _Optional[bool] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("job", "at", "present", "all_present")
    JOB_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    ALL_PRESENT_FIELD_NUMBER: _ClassVar[int]
    job: Job
    at: _timestamp_pb2.Timestamp
    present: bool
    all_present: bool
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., present: _Optional[bool] = ..., all_present: _Optional[bool] = ...) -> None: ...

class CommandJobRequest(_message.Message):
    __slots__ = ("job", "action")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[CommandJobRequest.Action]
        ACTION_CANCEL: _ClassVar[CommandJobRequest.Action]
        ACTION_HOLD: _ClassVar[CommandJobRequest.Action]
        ACTION_RELEASE: _ClassVar[CommandJobRequest.Action]
        ACTION_REQUEUE: _ClassVar[CommandJobRequest.Action]
    ACTION_UNSPECIFIED: CommandJobRequest.Action
    ACTION_CANCEL: CommandJobRequest.Action
    ACTION_HOLD: CommandJobRequest.Action
    ACTION_RELEASE: CommandJobRequest.Action
    ACTION_REQUEUE: CommandJobRequest.Action
    JOB_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    job: str
    action: CommandJobRequest.Action
    def __init__(self, job: _Optional[str] = ..., action: _Optional[_Union[CommandJobRequest.Action, str]] = ...) -> None: ...

class CommandJobResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdateJobRequest(_message.Message):
    __slots__ = ("job", "changes")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    job: str
    changes: JobChanges
    def __init__(self, job: _Optional[str] = ..., changes: _Optional[_Union[JobChanges, _Mapping]] = ...) -> None: ...

class JobChanges(_message.Message):
    __slots__ = ("name", "weight", "tenant", "gpus", "gpus_min", "gpus_max", "worker_types", "retries", "time_limit_s", "deadline_s", "max_cost", "remove", "gpus_together", "plans", "plans_from")
    class WorkerTypes(_message.Message):
        __slots__ = ("names",)
        NAMES_FIELD_NUMBER: _ClassVar[int]
        names: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...
    class Plans(_message.Message):
        __slots__ = ("plans",)
        PLANS_FIELD_NUMBER: _ClassVar[int]
        plans: _containers.RepeatedCompositeFieldContainer[Plan]
        def __init__(self, plans: _Optional[_Iterable[_Union[Plan, _Mapping]]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPUS_MIN_FIELD_NUMBER: _ClassVar[int]
    GPUS_MAX_FIELD_NUMBER: _ClassVar[int]
    WORKER_TYPES_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    MAX_COST_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    GPUS_TOGETHER_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    PLANS_FROM_FIELD_NUMBER: _ClassVar[int]
    name: str
    weight: float
    tenant: str
    gpus: int
    gpus_min: int
    gpus_max: int
    worker_types: JobChanges.WorkerTypes
    retries: int
    time_limit_s: float
    deadline_s: float
    max_cost: float
    remove: _containers.RepeatedScalarFieldContainer[str]
    gpus_together: int
    plans: JobChanges.Plans
    plans_from: str
    def __init__(self, name: _Optional[str] = ..., weight: _Optional[float] = ..., tenant: _Optional[str] = ..., gpus: _Optional[int] = ..., gpus_min: _Optional[int] = ..., gpus_max: _Optional[int] = ..., worker_types: _Optional[_Union[JobChanges.WorkerTypes, _Mapping]] = ..., retries: _Optional[int] = ..., time_limit_s: _Optional[float] = ..., deadline_s: _Optional[float] = ..., max_cost: _Optional[float] = ..., remove: _Optional[_Iterable[str]] = ..., gpus_together: _Optional[int] = ..., plans: _Optional[_Union[JobChanges.Plans, _Mapping]] = ..., plans_from: _Optional[str] = ...) -> None: ...

class UpdateJobResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class ExplainJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("job", "state", "reason", "text", "details", "expected_start", "rendered")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_START_FIELD_NUMBER: _ClassVar[int]
    RENDERED_FIELD_NUMBER: _ClassVar[int]
    job: str
    state: JobState
    reason: str
    text: str
    details: _struct_pb2.Struct
    expected_start: _timestamp_pb2.Timestamp
    rendered: str
    def __init__(self, job: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., reason: _Optional[str] = ..., text: _Optional[str] = ..., details: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., expected_start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., rendered: _Optional[str] = ...) -> None: ...

class ReadLogsRequest(_message.Message):
    __slots__ = ("job", "attempt", "rank", "tail_lines", "follow")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TAIL_LINES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    job: str
    attempt: int
    rank: int
    tail_lines: int
    follow: bool
    def __init__(self, job: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., tail_lines: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("job", "attempt", "rank", "node", "offset", "data", "notice")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    job: str
    attempt: int
    rank: int
    node: str
    offset: int
    data: bytes
    notice: str
    def __init__(self, job: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., node: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., notice: _Optional[str] = ...) -> None: ...

class ToJob(_message.Message):
    __slots__ = ("open", "data", "size", "end")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    open: OpenConnection
    data: bytes
    size: TerminalSize
    end: bool
    def __init__(self, open: _Optional[_Union[OpenConnection, _Mapping]] = ..., data: _Optional[bytes] = ..., size: _Optional[_Union[TerminalSize, _Mapping]] = ..., end: _Optional[bool] = ...) -> None: ...

class OpenConnection(_message.Message):
    __slots__ = ("job", "session", "offset", "size", "node", "new_shell", "tty", "term", "port", "attempt")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NEW_SHELL_FIELD_NUMBER: _ClassVar[int]
    TTY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    job: str
    session: str
    offset: int
    size: TerminalSize
    node: str
    new_shell: bool
    tty: bool
    term: str
    port: int
    attempt: int
    def __init__(self, job: _Optional[str] = ..., session: _Optional[str] = ..., offset: _Optional[int] = ..., size: _Optional[_Union[TerminalSize, _Mapping]] = ..., node: _Optional[str] = ..., new_shell: _Optional[bool] = ..., tty: _Optional[bool] = ..., term: _Optional[str] = ..., port: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class TerminalSize(_message.Message):
    __slots__ = ("rows", "columns")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ...) -> None: ...

class FromJob(_message.Message):
    __slots__ = ("opened", "data", "input_bytes", "exit_code")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    INPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    opened: ConnectionOpened
    data: bytes
    input_bytes: int
    exit_code: int
    def __init__(self, opened: _Optional[_Union[ConnectionOpened, _Mapping]] = ..., data: _Optional[bytes] = ..., input_bytes: _Optional[int] = ..., exit_code: _Optional[int] = ...) -> None: ...

class ConnectionOpened(_message.Message):
    __slots__ = ("offset", "input_bytes", "keep_s", "tty")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    INPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEEP_S_FIELD_NUMBER: _ClassVar[int]
    TTY_FIELD_NUMBER: _ClassVar[int]
    offset: int
    input_bytes: int
    keep_s: float
    tty: bool
    def __init__(self, offset: _Optional[int] = ..., input_bytes: _Optional[int] = ..., keep_s: _Optional[float] = ..., tty: _Optional[bool] = ...) -> None: ...

class ListFilesRequest(_message.Message):
    __slots__ = ("job", "attempt", "paths", "checkpoints")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    job: str
    attempt: int
    paths: _containers.RepeatedScalarFieldContainer[str]
    checkpoints: bool
    def __init__(self, job: _Optional[str] = ..., attempt: _Optional[int] = ..., paths: _Optional[_Iterable[str]] = ..., checkpoints: _Optional[bool] = ...) -> None: ...

class FileList(_message.Message):
    __slots__ = ("node", "attempt", "places", "files", "notices", "unmatched", "missing")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    UNMATCHED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    node: str
    attempt: int
    places: FilePlaces
    files: _containers.RepeatedCompositeFieldContainer[FileEntry]
    notices: _containers.RepeatedScalarFieldContainer[str]
    unmatched: _containers.RepeatedScalarFieldContainer[str]
    missing: str
    def __init__(self, node: _Optional[str] = ..., attempt: _Optional[int] = ..., places: _Optional[_Union[FilePlaces, _Mapping]] = ..., files: _Optional[_Iterable[_Union[FileEntry, _Mapping]]] = ..., notices: _Optional[_Iterable[str]] = ..., unmatched: _Optional[_Iterable[str]] = ..., missing: _Optional[str] = ...) -> None: ...

class FilePlaces(_message.Message):
    __slots__ = ("workdir", "outputs", "checkpoints", "logs", "kept_until", "outputs_kept_until")
    WORKDIR_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    KEPT_UNTIL_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_KEPT_UNTIL_FIELD_NUMBER: _ClassVar[int]
    workdir: str
    outputs: str
    checkpoints: str
    logs: str
    kept_until: _timestamp_pb2.Timestamp
    outputs_kept_until: _timestamp_pb2.Timestamp
    def __init__(self, workdir: _Optional[str] = ..., outputs: _Optional[str] = ..., checkpoints: _Optional[str] = ..., logs: _Optional[str] = ..., kept_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., outputs_kept_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class FileEntry(_message.Message):
    __slots__ = ("path", "size_bytes", "modified_ns", "executable")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_NS_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    modified_ns: int
    executable: bool
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., modified_ns: _Optional[int] = ..., executable: _Optional[bool] = ...) -> None: ...

class FetchFilesRequest(_message.Message):
    __slots__ = ("job", "attempt", "checkpoints", "node", "files")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    job: str
    attempt: int
    checkpoints: bool
    node: str
    files: _containers.RepeatedCompositeFieldContainer[FileWanted]
    def __init__(self, job: _Optional[str] = ..., attempt: _Optional[int] = ..., checkpoints: _Optional[bool] = ..., node: _Optional[str] = ..., files: _Optional[_Iterable[_Union[FileWanted, _Mapping]]] = ...) -> None: ...

class FileWanted(_message.Message):
    __slots__ = ("path", "offset", "size_bytes", "modified_ns")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_NS_FIELD_NUMBER: _ClassVar[int]
    path: str
    offset: int
    size_bytes: int
    modified_ns: int
    def __init__(self, path: _Optional[str] = ..., offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., modified_ns: _Optional[int] = ...) -> None: ...

class FilePiece(_message.Message):
    __slots__ = ("index", "file", "offset", "data", "end", "problem")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    index: int
    file: FileEntry
    offset: int
    data: bytes
    end: bool
    problem: str
    def __init__(self, index: _Optional[int] = ..., file: _Optional[_Union[FileEntry, _Mapping]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., end: _Optional[bool] = ..., problem: _Optional[str] = ...) -> None: ...

class FindPackagesRequest(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, digests: _Optional[_Iterable[str]] = ...) -> None: ...

class FindPackagesResponse(_message.Message):
    __slots__ = ("present",)
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    present: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, present: _Optional[_Iterable[str]] = ...) -> None: ...

class UploadPackageRequest(_message.Message):
    __slots__ = ("digest", "data")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    digest: str
    data: bytes
    def __init__(self, digest: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class UploadPackageResponse(_message.Message):
    __slots__ = ("size_bytes",)
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    def __init__(self, size_bytes: _Optional[int] = ...) -> None: ...
