"""The protocol of the rendezvous: messages, failures, offers, endpoints. Values only, no I/O."""
