#!/bin/bash
# One job over the hosts of an Open MPI hostfile ("gpu001 slots=8" and so on):
#
#   examples/mpi/train.sh hostfile train.py --lr 0.1
#
# Run it on the first host of the file: the nodes meet there. mpirun binds a task to one core unless
# it is told not to. It ends the job when a host is lost, so that several hosts that may lead would
# be of no use: ranks that die are what ft-run restarts. The check before the workers start names a
# host or a link that would ruin the run; CHECK= does without.
set -euo pipefail
hostfile=$1
shift
FT_RUN_TOKEN=$(ft-run token)   # the secret of this job: in the environment, not in its arguments
export FT_RUN_TOKEN
exec mpirun --hostfile "$hostfile" --map-by ppr:1:node --bind-to none -x FT_RUN_TOKEN \
  ft-run --auto-config --max-restarts 100 --restart-window 24h --hang-timeout auto \
  --preload torch ${CHECK---network-check} "$@"
