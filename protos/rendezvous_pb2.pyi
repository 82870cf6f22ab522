from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_KIND_UNSPECIFIED: _ClassVar[FailureKind]
    FAILURE_KIND_WORKER: _ClassVar[FailureKind]
    FAILURE_KIND_NODE_LOST: _ClassVar[FailureKind]
    FAILURE_KIND_STUCK: _ClassVar[FailureKind]
    FAILURE_KIND_START: _ClassVar[FailureKind]
    FAILURE_KIND_PREEMPTED: _ClassVar[FailureKind]
    FAILURE_KIND_STORE: _ClassVar[FailureKind]
    FAILURE_KIND_HANG: _ClassVar[FailureKind]

class ClaimState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLAIM_STATE_UNSPECIFIED: _ClassVar[ClaimState]
    CLAIM_STATE_RUNNING: _ClassVar[ClaimState]
    CLAIM_STATE_DONE: _ClassVar[ClaimState]
    CLAIM_STATE_STOPPED: _ClassVar[ClaimState]

class RankState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RANK_STATE_UNSPECIFIED: _ClassVar[RankState]
    RANK_STATE_ANSWERED: _ClassVar[RankState]
    RANK_STATE_STOPPED: _ClassVar[RankState]
    RANK_STATE_UNINTERRUPTIBLE: _ClassVar[RankState]
    RANK_STATE_SILENT: _ClassVar[RankState]
    RANK_STATE_UNKNOWN: _ClassVar[RankState]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_SUCCEEDED: _ClassVar[Outcome]
    OUTCOME_WORKERS_FAILED: _ClassVar[Outcome]
    OUTCOME_RENDEZVOUS_FAILED: _ClassVar[Outcome]
    OUTCOME_POLICY_ENDED: _ClassVar[Outcome]
    OUTCOME_CHECKS_FAILED: _ClassVar[Outcome]

class LeaseStep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEASE_STEP_UNSPECIFIED: _ClassVar[LeaseStep]
    LEASE_STEP_PREPARE: _ClassVar[LeaseStep]
    LEASE_STEP_PROPOSE: _ClassVar[LeaseStep]
    LEASE_STEP_RELEASE: _ClassVar[LeaseStep]
    LEASE_STEP_END: _ClassVar[LeaseStep]
FAILURE_KIND_UNSPECIFIED: FailureKind
FAILURE_KIND_WORKER: FailureKind
FAILURE_KIND_NODE_LOST: FailureKind
FAILURE_KIND_STUCK: FailureKind
FAILURE_KIND_START: FailureKind
FAILURE_KIND_PREEMPTED: FailureKind
FAILURE_KIND_STORE: FailureKind
FAILURE_KIND_HANG: FailureKind
CLAIM_STATE_UNSPECIFIED: ClaimState
CLAIM_STATE_RUNNING: ClaimState
CLAIM_STATE_DONE: ClaimState
CLAIM_STATE_STOPPED: ClaimState
RANK_STATE_UNSPECIFIED: RankState
RANK_STATE_ANSWERED: RankState
RANK_STATE_STOPPED: RankState
RANK_STATE_UNINTERRUPTIBLE: RankState
RANK_STATE_SILENT: RankState
RANK_STATE_UNKNOWN: RankState
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_SUCCEEDED: Outcome
OUTCOME_WORKERS_FAILED: Outcome
OUTCOME_RENDEZVOUS_FAILED: Outcome
OUTCOME_POLICY_ENDED: Outcome
OUTCOME_CHECKS_FAILED: Outcome
LEASE_STEP_UNSPECIFIED: LeaseStep
LEASE_STEP_PREPARE: LeaseStep
LEASE_STEP_PROPOSE: LeaseStep
LEASE_STEP_RELEASE: LeaseStep
LEASE_STEP_END: LeaseStep

class PolicySpec(_message.Message):
    __slots__ = ("rules", "restart_window_s", "backoff_first_s", "backoff_max_s", "max_node_failures", "rank0_decides", "max_no_progress")
    RULES_FIELD_NUMBER: _ClassVar[int]
    RESTART_WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIRST_S_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MAX_S_FIELD_NUMBER: _ClassVar[int]
    MAX_NODE_FAILURES_FIELD_NUMBER: _ClassVar[int]
    RANK0_DECIDES_FIELD_NUMBER: _ClassVar[int]
    MAX_NO_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedScalarFieldContainer[str]
    restart_window_s: float
    backoff_first_s: float
    backoff_max_s: float
    max_node_failures: int
    rank0_decides: bool
    max_no_progress: int
    def __init__(self, rules: _Optional[_Iterable[str]] = ..., restart_window_s: _Optional[float] = ..., backoff_first_s: _Optional[float] = ..., backoff_max_s: _Optional[float] = ..., max_node_failures: _Optional[int] = ..., rank0_decides: bool = ..., max_no_progress: _Optional[int] = ...) -> None: ...

class CheckSpec(_message.Message):
    __slots__ = ("level", "timeout_s", "on_restart", "is_binding", "straggler_threshold", "exclude_straggler", "only", "is_strict", "minimums", "compute_threshold")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    ON_RESTART_FIELD_NUMBER: _ClassVar[int]
    IS_BINDING_FIELD_NUMBER: _ClassVar[int]
    STRAGGLER_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_STRAGGLER_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    IS_STRICT_FIELD_NUMBER: _ClassVar[int]
    MINIMUMS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    level: str
    timeout_s: float
    on_restart: str
    is_binding: bool
    straggler_threshold: float
    exclude_straggler: bool
    only: bool
    is_strict: bool
    minimums: _containers.RepeatedScalarFieldContainer[str]
    compute_threshold: float
    def __init__(self, level: _Optional[str] = ..., timeout_s: _Optional[float] = ..., on_restart: _Optional[str] = ..., is_binding: bool = ..., straggler_threshold: _Optional[float] = ..., exclude_straggler: bool = ..., only: bool = ..., is_strict: bool = ..., minimums: _Optional[_Iterable[str]] = ..., compute_threshold: _Optional[float] = ...) -> None: ...

class HangSpec(_message.Message):
    __slots__ = ("timeout_s", "start_s")
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    start_s: float
    def __init__(self, timeout_s: _Optional[float] = ..., start_s: _Optional[float] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("job_id", "min_nodes", "max_nodes", "node_unit", "max_restarts", "policy", "checks", "separate_store", "rescale_delay_s", "hang", "succession")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    NODE_UNIT_FIELD_NUMBER: _ClassVar[int]
    MAX_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    SEPARATE_STORE_FIELD_NUMBER: _ClassVar[int]
    RESCALE_DELAY_S_FIELD_NUMBER: _ClassVar[int]
    HANG_FIELD_NUMBER: _ClassVar[int]
    SUCCESSION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    min_nodes: int
    max_nodes: int
    node_unit: int
    max_restarts: int
    policy: PolicySpec
    checks: CheckSpec
    separate_store: bool
    rescale_delay_s: float
    hang: HangSpec
    succession: SuccessionSpec
    def __init__(self, job_id: _Optional[str] = ..., min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ..., node_unit: _Optional[int] = ..., max_restarts: _Optional[int] = ..., policy: _Optional[_Union[PolicySpec, _Mapping]] = ..., checks: _Optional[_Union[CheckSpec, _Mapping]] = ..., separate_store: bool = ..., rescale_delay_s: _Optional[float] = ..., hang: _Optional[_Union[HangSpec, _Mapping]] = ..., succession: _Optional[_Union[SuccessionSpec, _Mapping]] = ...) -> None: ...

class SuccessionSpec(_message.Message):
    __slots__ = ("endpoints", "lease_s", "fence_s", "node_timeout_s", "node_grace_s")
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    FENCE_S_FIELD_NUMBER: _ClassVar[int]
    NODE_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    NODE_GRACE_S_FIELD_NUMBER: _ClassVar[int]
    endpoints: str
    lease_s: float
    fence_s: float
    node_timeout_s: float
    node_grace_s: float
    def __init__(self, endpoints: _Optional[str] = ..., lease_s: _Optional[float] = ..., fence_s: _Optional[float] = ..., node_timeout_s: _Optional[float] = ..., node_grace_s: _Optional[float] = ...) -> None: ...

class NodeSpec(_message.Message):
    __slots__ = ("node_id", "incarnation", "host", "address", "role", "local_world_size", "wanted_rank", "segment")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    WANTED_RANK_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: str
    host: str
    address: str
    role: str
    local_world_size: int
    wanted_rank: int
    segment: str
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., host: _Optional[str] = ..., address: _Optional[str] = ..., role: _Optional[str] = ..., local_world_size: _Optional[int] = ..., wanted_rank: _Optional[int] = ..., segment: _Optional[str] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("step", "world_size", "rank_offset", "is_replicated", "owner", "generation")
    STEP_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANK_OFFSET_FIELD_NUMBER: _ClassVar[int]
    IS_REPLICATED_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    step: int
    world_size: int
    rank_offset: int
    is_replicated: bool
    owner: int
    generation: int
    def __init__(self, step: _Optional[int] = ..., world_size: _Optional[int] = ..., rank_offset: _Optional[int] = ..., is_replicated: bool = ..., owner: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("step", "world_size", "ranks", "owner", "generation")
    STEP_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    step: int
    world_size: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    owner: int
    generation: int
    def __init__(self, step: _Optional[int] = ..., world_size: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., owner: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class Snapshots(_message.Message):
    __slots__ = ("round", "formed_by", "held", "replicas")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FORMED_BY_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    round: int
    formed_by: str
    held: _containers.RepeatedCompositeFieldContainer[Snapshot]
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, round: _Optional[int] = ..., formed_by: _Optional[str] = ..., held: _Optional[_Iterable[_Union[Snapshot, _Mapping]]] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("address", "port", "snapshots", "is_loading", "carried")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    IS_LOADING_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    address: str
    port: int
    snapshots: Snapshots
    is_loading: bool
    carried: _containers.RepeatedCompositeFieldContainer[CarriedValue]
    def __init__(self, address: _Optional[str] = ..., port: _Optional[int] = ..., snapshots: _Optional[_Union[Snapshots, _Mapping]] = ..., is_loading: bool = ..., carried: _Optional[_Iterable[_Union[CarriedValue, _Mapping]]] = ...) -> None: ...

class CarriedValue(_message.Message):
    __slots__ = ("name", "value", "change", "replaces")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    change: int
    replaces: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ..., change: _Optional[int] = ..., replaces: _Optional[int] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("cause", "words", "values", "ends_job")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ENDS_JOB_FIELD_NUMBER: _ClassVar[int]
    cause: str
    words: str
    values: _containers.RepeatedCompositeFieldContainer[CarriedValue]
    ends_job: bool
    def __init__(self, cause: _Optional[str] = ..., words: _Optional[str] = ..., values: _Optional[_Iterable[_Union[CarriedValue, _Mapping]]] = ..., ends_job: bool = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "rank", "local_rank", "node_rank", "host", "pid", "exit_code", "time_s", "role", "error_file", "error_json", "message", "stderr_tail", "out_of_memory", "after_stop", "trial", "proposal", "note")
    KIND_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FILE_FIELD_NUMBER: _ClassVar[int]
    ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STDERR_TAIL_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    AFTER_STOP_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    kind: FailureKind
    rank: int
    local_rank: int
    node_rank: int
    host: str
    pid: int
    exit_code: int
    time_s: int
    role: str
    error_file: str
    error_json: str
    message: str
    stderr_tail: str
    out_of_memory: bool
    after_stop: bool
    trial: str
    proposal: Proposal
    note: str
    def __init__(self, kind: _Optional[_Union[FailureKind, str]] = ..., rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., node_rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., exit_code: _Optional[int] = ..., time_s: _Optional[int] = ..., role: _Optional[str] = ..., error_file: _Optional[str] = ..., error_json: _Optional[str] = ..., message: _Optional[str] = ..., stderr_tail: _Optional[str] = ..., out_of_memory: bool = ..., after_stop: bool = ..., trial: _Optional[str] = ..., proposal: _Optional[_Union[Proposal, _Mapping]] = ..., note: _Optional[str] = ...) -> None: ...

class Past(_message.Message):
    __slots__ = ("restart_ages_s", "excluded", "since_s", "failures", "progress", "carried")
    RESTART_AGES_S_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    restart_ages_s: _containers.RepeatedScalarFieldContainer[int]
    excluded: _containers.RepeatedScalarFieldContainer[str]
    since_s: int
    failures: _containers.RepeatedCompositeFieldContainer[NodeFailures]
    progress: PastProgress
    carried: _containers.RepeatedCompositeFieldContainer[CarriedValue]
    def __init__(self, restart_ages_s: _Optional[_Iterable[int]] = ..., excluded: _Optional[_Iterable[str]] = ..., since_s: _Optional[int] = ..., failures: _Optional[_Iterable[_Union[NodeFailures, _Mapping]]] = ..., progress: _Optional[_Union[PastProgress, _Mapping]] = ..., carried: _Optional[_Iterable[_Union[CarriedValue, _Mapping]]] = ...) -> None: ...

class PastProgress(_message.Message):
    __slots__ = ("furthest", "idle_restarts")
    FURTHEST_FIELD_NUMBER: _ClassVar[int]
    IDLE_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    furthest: int
    idle_restarts: int
    def __init__(self, furthest: _Optional[int] = ..., idle_restarts: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("furthest", "has_stepped")
    FURTHEST_FIELD_NUMBER: _ClassVar[int]
    HAS_STEPPED_FIELD_NUMBER: _ClassVar[int]
    furthest: int
    has_stepped: bool
    def __init__(self, furthest: _Optional[int] = ..., has_stepped: bool = ...) -> None: ...

class NodeFailures(_message.Message):
    __slots__ = ("node_id", "ages_s")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    AGES_S_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    ages_s: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, node_id: _Optional[str] = ..., ages_s: _Optional[_Iterable[int]] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("round", "formed_by", "restarts", "nodes", "node_rank", "rank_offset", "successor", "state", "failures", "past", "checked", "term", "ended", "clear")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FORMED_BY_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    RANK_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    round: int
    formed_by: str
    restarts: int
    nodes: int
    node_rank: int
    rank_offset: int
    successor: str
    state: ClaimState
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    past: Past
    checked: bool
    term: int
    ended: str
    clear: int
    def __init__(self, round: _Optional[int] = ..., formed_by: _Optional[str] = ..., restarts: _Optional[int] = ..., nodes: _Optional[int] = ..., node_rank: _Optional[int] = ..., rank_offset: _Optional[int] = ..., successor: _Optional[str] = ..., state: _Optional[_Union[ClaimState, str]] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., past: _Optional[_Union[Past, _Mapping]] = ..., checked: bool = ..., term: _Optional[int] = ..., ended: _Optional[str] = ..., clear: _Optional[int] = ...) -> None: ...

class Attend(_message.Message):
    __slots__ = ("protocol", "version", "job", "node", "offer", "claim", "leaving", "claims")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    job: JobSpec
    node: NodeSpec
    offer: Offer
    claim: Claim
    leaving: str
    claims: int
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., job: _Optional[_Union[JobSpec, _Mapping]] = ..., node: _Optional[_Union[NodeSpec, _Mapping]] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., claim: _Optional[_Union[Claim, _Mapping]] = ..., leaving: _Optional[str] = ..., claims: _Optional[int] = ...) -> None: ...

class WorkClaim(_message.Message):
    __slots__ = ("name", "size", "grain", "confirmed", "held")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    GRAIN_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    grain: int
    confirmed: _containers.RepeatedScalarFieldContainer[int]
    held: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., grain: _Optional[int] = ..., confirmed: _Optional[_Iterable[int]] = ..., held: _Optional[_Iterable[int]] = ...) -> None: ...

class WorkReport(_message.Message):
    __slots__ = ("round", "number", "claim", "rate", "idle", "others")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    round: int
    number: int
    claim: WorkClaim
    rate: float
    idle: int
    others: _containers.RepeatedCompositeFieldContainer[WorkClaim]
    def __init__(self, round: _Optional[int] = ..., number: _Optional[int] = ..., claim: _Optional[_Union[WorkClaim, _Mapping]] = ..., rate: _Optional[float] = ..., idle: _Optional[int] = ..., others: _Optional[_Iterable[_Union[WorkClaim, _Mapping]]] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("round", "failure")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    round: int
    failure: Failure
    def __init__(self, round: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Stopped(_message.Message):
    __slots__ = ("round", "offer", "progress")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    round: int
    offer: Offer
    progress: Progress
    def __init__(self, round: _Optional[int] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("reason", "seconds")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    seconds: float
    def __init__(self, reason: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class Drained(_message.Message):
    __slots__ = ("round", "step", "number", "is_fixed")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_FIXED_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    number: int
    is_fixed: bool
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., number: _Optional[int] = ..., is_fixed: bool = ...) -> None: ...

class Loaded(_message.Message):
    __slots__ = ("offer",)
    OFFER_FIELD_NUMBER: _ClassVar[int]
    offer: Offer
    def __init__(self, offer: _Optional[_Union[Offer, _Mapping]] = ...) -> None: ...

class ChallengeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Heard(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckResult(_message.Message):
    __slots__ = ("number", "report", "offer")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    number: int
    report: str
    offer: Offer
    def __init__(self, number: _Optional[int] = ..., report: _Optional[str] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("file", "line", "function", "is_library", "source")
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    IS_LIBRARY_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    file: str
    line: int
    function: str
    is_library: bool
    source: str
    def __init__(self, file: _Optional[str] = ..., line: _Optional[int] = ..., function: _Optional[str] = ..., is_library: bool = ..., source: _Optional[str] = ...) -> None: ...

class RankStack(_message.Message):
    __slots__ = ("rank", "node_rank", "host", "state", "frames", "steps", "remark", "ticks", "uses_gpu", "collectives", "note")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    REMARK_FIELD_NUMBER: _ClassVar[int]
    TICKS_FIELD_NUMBER: _ClassVar[int]
    USES_GPU_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVES_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    node_rank: int
    host: str
    state: RankState
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    steps: int
    remark: str
    ticks: int
    uses_gpu: bool
    collectives: RankCollectives
    note: str
    def __init__(self, rank: _Optional[int] = ..., node_rank: _Optional[int] = ..., host: _Optional[str] = ..., state: _Optional[_Union[RankState, str]] = ..., frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., steps: _Optional[int] = ..., remark: _Optional[str] = ..., ticks: _Optional[int] = ..., uses_gpu: bool = ..., collectives: _Optional[_Union[RankCollectives, _Mapping]] = ..., note: _Optional[str] = ...) -> None: ...

class GroupCollectives(_message.Message):
    __slots__ = ("group", "ranks", "entered", "pending", "operation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ENTERED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    ranks: str
    entered: int
    pending: int
    operation: str
    def __init__(self, group: _Optional[str] = ..., ranks: _Optional[str] = ..., entered: _Optional[int] = ..., pending: _Optional[int] = ..., operation: _Optional[str] = ...) -> None: ...

class RankCollectives(_message.Message):
    __slots__ = ("groups", "peers", "is_whole", "unseen")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupCollectives]
    peers: _containers.RepeatedScalarFieldContainer[int]
    is_whole: bool
    unseen: str
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupCollectives, _Mapping]]] = ..., peers: _Optional[_Iterable[int]] = ..., is_whole: bool = ..., unseen: _Optional[str] = ...) -> None: ...

class Suspicion(_message.Message):
    __slots__ = ("round", "ranks", "idle_s", "trial")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    round: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    idle_s: float
    trial: str
    def __init__(self, round: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., idle_s: _Optional[float] = ..., trial: _Optional[str] = ...) -> None: ...

class StackReport(_message.Message):
    __slots__ = ("number", "stacks")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    number: int
    stacks: _containers.RepeatedCompositeFieldContainer[RankStack]
    def __init__(self, number: _Optional[int] = ..., stacks: _Optional[_Iterable[_Union[RankStack, _Mapping]]] = ...) -> None: ...

class RankSteps(_message.Message):
    __slots__ = ("rank", "steps", "steps_per_s", "idle_s", "data_wait")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    DATA_WAIT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    steps: int
    steps_per_s: float
    idle_s: float
    data_wait: float
    def __init__(self, rank: _Optional[int] = ..., steps: _Optional[int] = ..., steps_per_s: _Optional[float] = ..., idle_s: _Optional[float] = ..., data_wait: _Optional[float] = ...) -> None: ...

class StepsReport(_message.Message):
    __slots__ = ("number", "workers", "checkpoint_step", "checkpoint_age_s")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    number: int
    workers: _containers.RepeatedCompositeFieldContainer[RankSteps]
    checkpoint_step: int
    checkpoint_age_s: float
    def __init__(self, number: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[RankSteps, _Mapping]]] = ..., checkpoint_step: _Optional[int] = ..., checkpoint_age_s: _Optional[float] = ...) -> None: ...

class NodeMessage(_message.Message):
    __slots__ = ("attend", "failed", "done", "stopped", "leave", "challengereply", "heard", "checkresult", "stackreport", "suspicion", "stepsreport", "notice", "drained", "workreport", "loaded")
    ATTEND_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    CHALLENGEREPLY_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    CHECKRESULT_FIELD_NUMBER: _ClassVar[int]
    STACKREPORT_FIELD_NUMBER: _ClassVar[int]
    SUSPICION_FIELD_NUMBER: _ClassVar[int]
    STEPSREPORT_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    WORKREPORT_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    attend: Attend
    failed: Failed
    done: Done
    stopped: Stopped
    leave: Leave
    challengereply: ChallengeReply
    heard: Heard
    checkresult: CheckResult
    stackreport: StackReport
    suspicion: Suspicion
    stepsreport: StepsReport
    notice: Notice
    drained: Drained
    workreport: WorkReport
    loaded: Loaded
    def __init__(self, attend: _Optional[_Union[Attend, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., stopped: _Optional[_Union[Stopped, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., challengereply: _Optional[_Union[ChallengeReply, _Mapping]] = ..., heard: _Optional[_Union[Heard, _Mapping]] = ..., checkresult: _Optional[_Union[CheckResult, _Mapping]] = ..., stackreport: _Optional[_Union[StackReport, _Mapping]] = ..., suspicion: _Optional[_Union[Suspicion, _Mapping]] = ..., stepsreport: _Optional[_Union[StepsReport, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., drained: _Optional[_Union[Drained, _Mapping]] = ..., workreport: _Optional[_Union[WorkReport, _Mapping]] = ..., loaded: _Optional[_Union[Loaded, _Mapping]] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("joined", "min_nodes", "max_nodes", "missing", "timeout_s", "spare", "backoff_s")
    JOINED_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    SPARE_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_S_FIELD_NUMBER: _ClassVar[int]
    joined: int
    min_nodes: int
    max_nodes: int
    missing: _containers.RepeatedScalarFieldContainer[str]
    timeout_s: float
    spare: bool
    backoff_s: float
    def __init__(self, joined: _Optional[int] = ..., min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ..., missing: _Optional[_Iterable[str]] = ..., timeout_s: _Optional[float] = ..., spare: bool = ..., backoff_s: _Optional[float] = ...) -> None: ...

class Resumption(_message.Message):
    __slots__ = ("step", "round", "formed_by", "owner")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FORMED_BY_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    step: int
    round: int
    formed_by: str
    owner: int
    def __init__(self, step: _Optional[int] = ..., round: _Optional[int] = ..., formed_by: _Optional[str] = ..., owner: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("round", "formed_by", "restarts", "node_rank", "nodes", "rank_offset", "world_size", "role_rank_offset", "role_world_size", "successor", "master_addr", "master_port", "reason", "cause", "decision", "is_free", "restarts_in_window", "past", "resumption", "term")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FORMED_BY_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RANK_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ROLE_RANK_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROLE_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDR_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    IS_FREE_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_IN_WINDOW_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    RESUMPTION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    round: int
    formed_by: str
    restarts: int
    node_rank: int
    nodes: int
    rank_offset: int
    world_size: int
    role_rank_offset: int
    role_world_size: int
    successor: str
    master_addr: str
    master_port: int
    reason: str
    cause: Failure
    decision: str
    is_free: bool
    restarts_in_window: int
    past: Past
    resumption: Resumption
    term: int
    def __init__(self, round: _Optional[int] = ..., formed_by: _Optional[str] = ..., restarts: _Optional[int] = ..., node_rank: _Optional[int] = ..., nodes: _Optional[int] = ..., rank_offset: _Optional[int] = ..., world_size: _Optional[int] = ..., role_rank_offset: _Optional[int] = ..., role_world_size: _Optional[int] = ..., successor: _Optional[str] = ..., master_addr: _Optional[str] = ..., master_port: _Optional[int] = ..., reason: _Optional[str] = ..., cause: _Optional[_Union[Failure, _Mapping]] = ..., decision: _Optional[str] = ..., is_free: bool = ..., restarts_in_window: _Optional[int] = ..., past: _Optional[_Union[Past, _Mapping]] = ..., resumption: _Optional[_Union[Resumption, _Mapping]] = ..., term: _Optional[int] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("assignment",)
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("round", "reason", "lets_settle", "is_stale", "is_hung", "stacks")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LETS_SETTLE_FIELD_NUMBER: _ClassVar[int]
    IS_STALE_FIELD_NUMBER: _ClassVar[int]
    IS_HUNG_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    round: int
    reason: str
    lets_settle: bool
    is_stale: bool
    is_hung: bool
    stacks: str
    def __init__(self, round: _Optional[int] = ..., reason: _Optional[str] = ..., lets_settle: bool = ..., is_stale: bool = ..., is_hung: bool = ..., stacks: _Optional[str] = ...) -> None: ...

class NoHang(_message.Message):
    __slots__ = ("round", "sentence")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    round: int
    sentence: str
    def __init__(self, round: _Optional[int] = ..., sentence: _Optional[str] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("round", "reason", "seconds", "is_whole", "resizes", "grows", "number")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    RESIZES_FIELD_NUMBER: _ClassVar[int]
    GROWS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    round: int
    reason: str
    seconds: float
    is_whole: bool
    resizes: bool
    grows: bool
    number: int
    def __init__(self, round: _Optional[int] = ..., reason: _Optional[str] = ..., seconds: _Optional[float] = ..., is_whole: bool = ..., resizes: bool = ..., grows: bool = ..., number: _Optional[int] = ...) -> None: ...

class CancelDrain(_message.Message):
    __slots__ = ("round", "number")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    round: int
    number: int
    def __init__(self, round: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class MayLeave(_message.Message):
    __slots__ = ("round", "step")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class WorkGrant(_message.Message):
    __slots__ = ("number", "name", "pieces", "confirmed_to", "batch_s", "refusal")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_TO_FIELD_NUMBER: _ClassVar[int]
    BATCH_S_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    pieces: _containers.RepeatedScalarFieldContainer[int]
    confirmed_to: int
    batch_s: float
    refusal: str
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ..., pieces: _Optional[_Iterable[int]] = ..., confirmed_to: _Optional[int] = ..., batch_s: _Optional[float] = ..., refusal: _Optional[str] = ...) -> None: ...

class Resigned(_message.Message):
    __slots__ = ("round", "formed_by", "reason", "restarts", "past", "clear")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FORMED_BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    round: int
    formed_by: str
    reason: str
    restarts: int
    past: Past
    clear: int
    def __init__(self, round: _Optional[int] = ..., formed_by: _Optional[str] = ..., reason: _Optional[str] = ..., restarts: _Optional[int] = ..., past: _Optional[_Union[Past, _Mapping]] = ..., clear: _Optional[int] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckOrder(_message.Message):
    __slots__ = ("number", "phase", "level", "rank_offset", "world_size", "master_addr", "master_port", "deadline_s", "progress")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    RANK_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDR_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    number: int
    phase: str
    level: str
    rank_offset: int
    world_size: int
    master_addr: str
    master_port: int
    deadline_s: float
    progress: str
    def __init__(self, number: _Optional[int] = ..., phase: _Optional[str] = ..., level: _Optional[str] = ..., rank_offset: _Optional[int] = ..., world_size: _Optional[int] = ..., master_addr: _Optional[str] = ..., master_port: _Optional[int] = ..., deadline_s: _Optional[float] = ..., progress: _Optional[str] = ...) -> None: ...

class StackOrder(_message.Message):
    __slots__ = ("number", "inquiry")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INQUIRY_FIELD_NUMBER: _ClassVar[int]
    number: int
    inquiry: int
    def __init__(self, number: _Optional[int] = ..., inquiry: _Optional[int] = ...) -> None: ...

class StepsOrder(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class CheckVerdict(_message.Message):
    __slots__ = ("exit_code", "sentence", "conclusion", "report")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    CONCLUSION_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    sentence: str
    conclusion: str
    report: str
    def __init__(self, exit_code: _Optional[int] = ..., sentence: _Optional[str] = ..., conclusion: _Optional[str] = ..., report: _Optional[str] = ...) -> None: ...

class Saving(_message.Message):
    __slots__ = ("step", "ranks", "owner")
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    step: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    owner: int
    def __init__(self, step: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., owner: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("outcome", "exit_code", "sentence", "restarts", "rounds", "cause", "failures", "failure_count", "saving")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SAVING_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    exit_code: int
    sentence: str
    restarts: int
    rounds: int
    cause: Failure
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    failure_count: int
    saving: Saving
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., exit_code: _Optional[int] = ..., sentence: _Optional[str] = ..., restarts: _Optional[int] = ..., rounds: _Optional[int] = ..., cause: _Optional[_Union[Failure, _Mapping]] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., failure_count: _Optional[int] = ..., saving: _Optional[_Union[Saving, _Mapping]] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("sentence", "is_displaced")
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    IS_DISPLACED_FIELD_NUMBER: _ClassVar[int]
    sentence: str
    is_displaced: bool
    def __init__(self, sentence: _Optional[str] = ..., is_displaced: bool = ...) -> None: ...

class Excluded(_message.Message):
    __slots__ = ("sentence",)
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    sentence: str
    def __init__(self, sentence: _Optional[str] = ...) -> None: ...

class Renamed(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class MasterMessage(_message.Message):
    __slots__ = ("waiting", "start", "stop", "challenge", "verdict", "refused", "excluded", "checkorder", "checkverdict", "renamed", "stackorder", "nohang", "stepsorder", "drain", "mayleave", "canceldrain", "workgrant", "resigned")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    CHECKORDER_FIELD_NUMBER: _ClassVar[int]
    CHECKVERDICT_FIELD_NUMBER: _ClassVar[int]
    RENAMED_FIELD_NUMBER: _ClassVar[int]
    STACKORDER_FIELD_NUMBER: _ClassVar[int]
    NOHANG_FIELD_NUMBER: _ClassVar[int]
    STEPSORDER_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    MAYLEAVE_FIELD_NUMBER: _ClassVar[int]
    CANCELDRAIN_FIELD_NUMBER: _ClassVar[int]
    WORKGRANT_FIELD_NUMBER: _ClassVar[int]
    RESIGNED_FIELD_NUMBER: _ClassVar[int]
    waiting: Waiting
    start: Start
    stop: Stop
    challenge: Challenge
    verdict: Verdict
    refused: Refused
    excluded: Excluded
    checkorder: CheckOrder
    checkverdict: CheckVerdict
    renamed: Renamed
    stackorder: StackOrder
    nohang: NoHang
    stepsorder: StepsOrder
    drain: Drain
    mayleave: MayLeave
    canceldrain: CancelDrain
    workgrant: WorkGrant
    resigned: Resigned
    def __init__(self, waiting: _Optional[_Union[Waiting, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., challenge: _Optional[_Union[Challenge, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., excluded: _Optional[_Union[Excluded, _Mapping]] = ..., checkorder: _Optional[_Union[CheckOrder, _Mapping]] = ..., checkverdict: _Optional[_Union[CheckVerdict, _Mapping]] = ..., renamed: _Optional[_Union[Renamed, _Mapping]] = ..., stackorder: _Optional[_Union[StackOrder, _Mapping]] = ..., nohang: _Optional[_Union[NoHang, _Mapping]] = ..., stepsorder: _Optional[_Union[StepsOrder, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., mayleave: _Optional[_Union[MayLeave, _Mapping]] = ..., canceldrain: _Optional[_Union[CancelDrain, _Mapping]] = ..., workgrant: _Optional[_Union[WorkGrant, _Mapping]] = ..., resigned: _Optional[_Union[Resigned, _Mapping]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("until_end",)
    UNTIL_END_FIELD_NUMBER: _ClassVar[int]
    until_end: bool
    def __init__(self, until_end: bool = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node_id", "host", "address", "role", "phase", "node_rank", "rank_offset", "local_world_size", "attached", "workers", "segment")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    RANK_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOCAL_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    host: str
    address: str
    role: str
    phase: str
    node_rank: int
    rank_offset: int
    local_world_size: int
    attached: bool
    workers: _containers.RepeatedCompositeFieldContainer[RankSteps]
    segment: str
    def __init__(self, node_id: _Optional[str] = ..., host: _Optional[str] = ..., address: _Optional[str] = ..., role: _Optional[str] = ..., phase: _Optional[str] = ..., node_rank: _Optional[int] = ..., rank_offset: _Optional[int] = ..., local_world_size: _Optional[int] = ..., attached: bool = ..., workers: _Optional[_Iterable[_Union[RankSteps, _Mapping]]] = ..., segment: _Optional[str] = ...) -> None: ...

class WorkProgress(_message.Message):
    __slots__ = ("name", "done", "size", "per_s", "left_s", "what", "unit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PER_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    done: int
    size: int
    per_s: float
    left_s: float
    what: str
    unit: str
    def __init__(self, name: _Optional[str] = ..., done: _Optional[int] = ..., size: _Optional[int] = ..., per_s: _Optional[float] = ..., left_s: _Optional[float] = ..., what: _Optional[str] = ..., unit: _Optional[str] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("job_id", "phase", "round", "restarts", "max_restarts", "min_nodes", "max_nodes", "world_nodes", "uptime_s", "round_uptime_s", "nodes", "version", "last_stop", "hosts", "leader", "term", "lease_s", "checkpoint_step", "checkpoint_age_s", "exit_code", "ended", "report", "work")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    MAX_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    WORLD_NODES_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    ROUND_UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_STOP_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    phase: str
    round: int
    restarts: int
    max_restarts: int
    min_nodes: int
    max_nodes: int
    world_nodes: int
    uptime_s: float
    round_uptime_s: float
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    version: str
    last_stop: str
    hosts: _containers.RepeatedScalarFieldContainer[str]
    leader: str
    term: int
    lease_s: float
    checkpoint_step: int
    checkpoint_age_s: float
    exit_code: int
    ended: str
    report: str
    work: _containers.RepeatedCompositeFieldContainer[WorkProgress]
    def __init__(self, job_id: _Optional[str] = ..., phase: _Optional[str] = ..., round: _Optional[int] = ..., restarts: _Optional[int] = ..., max_restarts: _Optional[int] = ..., min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ..., world_nodes: _Optional[int] = ..., uptime_s: _Optional[float] = ..., round_uptime_s: _Optional[float] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., version: _Optional[str] = ..., last_stop: _Optional[str] = ..., hosts: _Optional[_Iterable[str]] = ..., leader: _Optional[str] = ..., term: _Optional[int] = ..., lease_s: _Optional[float] = ..., checkpoint_step: _Optional[int] = ..., checkpoint_age_s: _Optional[float] = ..., exit_code: _Optional[int] = ..., ended: _Optional[str] = ..., report: _Optional[str] = ..., work: _Optional[_Iterable[_Union[WorkProgress, _Mapping]]] = ...) -> None: ...

class LeaseAsk(_message.Message):
    __slots__ = ("step", "host", "process", "number", "term", "lease_ms", "round", "exit_code", "round_term")
    STEP_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    ROUND_TERM_FIELD_NUMBER: _ClassVar[int]
    step: LeaseStep
    host: int
    process: str
    number: int
    term: int
    lease_ms: int
    round: int
    exit_code: int
    round_term: int
    def __init__(self, step: _Optional[_Union[LeaseStep, str]] = ..., host: _Optional[int] = ..., process: _Optional[str] = ..., number: _Optional[int] = ..., term: _Optional[int] = ..., lease_ms: _Optional[int] = ..., round: _Optional[int] = ..., exit_code: _Optional[int] = ..., round_term: _Optional[int] = ...) -> None: ...

class LeaseAnswer(_message.Message):
    __slots__ = ("accepted", "highest", "knows_earlier", "round_term", "round", "host", "announced_term")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_FIELD_NUMBER: _ClassVar[int]
    KNOWS_EARLIER_FIELD_NUMBER: _ClassVar[int]
    ROUND_TERM_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_TERM_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    highest: int
    knows_earlier: bool
    round_term: int
    round: int
    host: int
    announced_term: int
    def __init__(self, accepted: bool = ..., highest: _Optional[int] = ..., knows_earlier: bool = ..., round_term: _Optional[int] = ..., round: _Optional[int] = ..., host: _Optional[int] = ..., announced_term: _Optional[int] = ...) -> None: ...

class StacksRequest(_message.Message):
    __slots__ = ("ranks",)
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class StackGroup(_message.Message):
    __slots__ = ("ranks", "stack")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    stack: RankStack
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., stack: _Optional[_Union[RankStack, _Mapping]] = ...) -> None: ...

class StacksReply(_message.Message):
    __slots__ = ("round", "groups", "silent")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    round: int
    groups: _containers.RepeatedCompositeFieldContainer[StackGroup]
    silent: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, round: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[StackGroup, _Mapping]]] = ..., silent: _Optional[_Iterable[str]] = ...) -> None: ...
