#!/bin/bash
# For Slurm's administrator: this file on every node, and in slurm.conf
#
#   Prolog=/etc/slurm/prolog.sh
#   SchedulerParameters=nohold_on_prolog_fail    # else the job waits for a person
#
# Each node is checked before a job gets it. One that fails the check is drained, with the reason
# below in `scontrol show node`, and Slurm requeues the job, which then gets another node. Whatever
# else goes wrong here (no ft-run, no time) says nothing about the node, and lets the job begin.
FT_RUN=${FT_RUN:-/opt/ft-run/bin/ft-run}
report=$(mktemp)
timeout 120 "$FT_RUN" check --nproc-per-node auto --check-timeout 90 >"$report" 2>&1 </dev/null
status=$?
if [ $status -eq 20 ]; then
  scontrol update NodeName="$SLURMD_NODENAME" State=DRAIN \
    Reason="ft-run check: $(tail -n 1 "$report" | tr -d '\n' | cut -c 1-200)"
fi
rm -f "$report"
[ $status -ne 20 ]
