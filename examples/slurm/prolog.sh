#!/bin/bash
# For Slurm's administrator: this file on every node, and in slurm.conf
#
#   Prolog=/etc/slurm/prolog.sh
#   SchedulerParameters=nohold_on_prolog_fail    # else the job waits for a person
#
# Each node is checked before a job gets it. One that is faulty (30) is drained, with the reason in
# `scontrol show node`, and Slurm requeues the job, which then gets another node. Whatever else goes
# wrong here (no ft-run, no time) says nothing about the node, and lets the job begin. A minimum that
# counts as a fault: PET_MIN_COMPUTE_TFLOPS=500 PET_EXCLUDE_STRAGGLER=1 in the environment.
FT_RUN=${FT_RUN:-/opt/ft-run/bin/ft-run}
report=$(mktemp)
timeout 120 "$FT_RUN" check --nproc-per-node auto --check-timeout 90 >"$report" 2>&1 </dev/null
status=$?
if [ $status -eq 30 ]; then   # the last line but one is the node's in the table
  reason=$(tail -n 2 "$report" | head -n 1 | tr -s ' ' | cut -c 1-200)
  scontrol update NodeName="$SLURMD_NODENAME" State=DRAIN Reason="ft-run check: $reason"
fi
rm -f "$report"
[ $status -ne 30 ]
