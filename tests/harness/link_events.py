"""Events of a link without their times and addresses, to be compared."""

from ft_run.rendezvous.master.link import LinkDown, LinkEvent, LinkUp


def plain(event: LinkEvent) -> LinkEvent:
    """Return the event with the defaults of the fields that differ in each run."""
    match event:
        case LinkUp():
            return LinkUp(event.again)
        case LinkDown():
            return LinkDown(event.reason)
    return event
