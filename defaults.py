"""Every default of ft-run, once. Units are in the names."""

from typing import Final

# The contract of torchrun.
NPROC_PER_NODE: Final = "1"
JOB_ID: Final = "none"
ROLE: Final = "default"
ENDPOINT_PORT: Final = 29400
MASTER_ADDR: Final = "127.0.0.1"
MASTER_PORT: Final = 29500
MAX_RESTARTS: Final = 0
SHUTDOWN_TIMEOUT_S: Final = 30.0
SIGNALS_TO_HANDLE: Final = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"

# Membership (docs/reference/faults.md).
JOIN_TIMEOUT_S: Final = 600.0
LAST_CALL_TIMEOUT_S: Final = 30.0
NODE_GRACE_S: Final = 1.0
NODE_TIMEOUT_S: Final = 5.0
MASTER_TIMEOUT_S: Final = 600.0
RESCALE_DELAY_S: Final = 10.0
DRAIN_TIMEOUT_S: Final = 60.0
LEASE_S: Final = 3.0
FENCE_S: Final = 6.0
NODE_UNIT: Final = 1
STORE: Final = "worker"

# Failure policy (docs/reference/failure-policy.md).
MAX_NODE_FAILURES: Final = 3
MAX_NO_PROGRESS: Final = 3
"""Where workers are watched."""

# Hangs (docs/guide/hangs.md).
HANG_TIMEOUT_START_S: Final = 1800.0

# The first connection of an agent to its master: how long a name that does not resolve or a
# port that refuses may be a master that is still starting.
CONNECT_TIMEOUT_S: Final = 60.0

# How long a claim to an identity that is already taken waits for its holder to answer.
IDENTITY_ANSWER_S: Final = 1.0

# How long the master waits, after the verdict, for nodes that have not yet heard it.
VERDICT_GRACE_S: Final = 5.0

# Bounds on what a failure record carries over the wire.
ERROR_FILE_MAX_BYTES: Final = 32 * 1024
STDERR_TAIL_MAX_BYTES: Final = 4 * 1024
FAILURES_IN_VERDICT: Final = 16
CLAIM_TEXT_MAX_CHARS: Final = 192 * 1024

# What one node gets of the report of the checks; with 8 GPUs a node takes about 5 KB of it.
CHECK_REPORT_MAX_BYTES: Final = 32 * 1024 * 1024

# How long a master that starts from nothing waits for the members of a running round.
TAKEOVER_GRACE_S: Final = 10.0

# Checks (docs/reference/checks.md).
CHECK_LEVEL: Final = "light"
CHECK_TIMEOUT_S: Final = 60.0
CHECK_TIMEOUT_GPUS_S: Final = 180.0
STRAGGLER_THRESHOLD: Final = 1.5
