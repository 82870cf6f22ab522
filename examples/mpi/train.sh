#!/bin/bash
# One job over the hosts of an Open MPI hostfile ("gpu001 slots=8" and so on):
#
#   examples/mpi/train.sh hostfile train.py --lr 0.1
#
# Run it on the first host of the file: the nodes meet there. mpirun binds a task to one core unless
# it is told not to. It ends the job when a host is lost: ranks that die are what ft-run restarts.
set -euo pipefail
hostfile=$1
shift
exec mpirun --hostfile "$hostfile" --map-by ppr:1:node --bind-to none \
  ft-run --auto-config --max-restarts 100 --restart-window 24h "$@"
