#!/bin/bash
# One job over the hosts of an Open MPI hostfile ("gpu001 slots=8" and so on):
#
#   examples/mpi/train.sh hostfile train.py --lr 0.1
#
# Run it on the first host of the file: it hosts the master. --bind-to none is needed because mpirun
# otherwise binds a task to one core. mpirun ends the job when a host is lost, so several master hosts
# would not help: ft-run restarts ranks that die. The check before the workers start finds faulty hosts
# and links; CHECK= disables it.
set -euo pipefail
hostfile=$1
shift
FT_RUN_TOKEN=$(ft-run token)   # the secret of this job: in the environment, because all users can see arguments
export FT_RUN_TOKEN
exec mpirun --hostfile "$hostfile" --map-by ppr:1:node --bind-to none -x FT_RUN_TOKEN \
  ft-run --auto-config --max-restarts 100 --restart-window 24h --hang-timeout auto \
  --preload torch,torch._dynamo ${CHECK---network-check} "$@"
