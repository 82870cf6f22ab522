"""What drivers say of devices, and which of them are visible: for checks and for the launcher."""
