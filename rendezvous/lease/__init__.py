"""Which of the listed hosts leads: PaxosLease, the search for the leader, the fence. No I/O."""
