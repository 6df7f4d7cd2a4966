"""The dispatch of pools: requests to the inboxes of workers, one state machine per pool."""
