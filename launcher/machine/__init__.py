"""Resources and limits of this machine: CPUs, accelerators, memory, addresses. Changes nothing."""
