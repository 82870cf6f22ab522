#!/bin/bash
# For Slurm's administrator: this file on every node, and in slurm.conf
#
#   Prolog=/etc/slurm/prolog.sh
#   SchedulerParameters=nohold_on_prolog_fail    # otherwise the job is held until someone releases it
#
# Each node is checked before a job gets it. A faulty node (30) is drained, with the reason in
# `scontrol show node`, and Slurm requeues the job, which then gets another node. After any other error
# (ft-run is missing, the check timed out) the job starts, because the node may be healthy. To treat a slow
# node as faulty, set PET_MIN_COMPUTE_TFLOPS=500 PET_EXCLUDE_STRAGGLER=1 in the environment.
FT_RUN=${FT_RUN:-/opt/ft-run/bin/ft-run}
report=$(mktemp)
timeout 120 "$FT_RUN" check --nproc-per-node auto --check-timeout 90 >"$report" 2>&1 </dev/null
status=$?
if [ $status -eq 30 ]; then
  reason=$(sed -n 's/^ft-run: error: this node failed the checks: //p' "$report" | cut -c 1-200)
  scontrol update NodeName="$SLURMD_NODENAME" State=DRAIN Reason="ft-run check: $reason"
fi
rm -f "$report"
[ $status -ne 30 ]
