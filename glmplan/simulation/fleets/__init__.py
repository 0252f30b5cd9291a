"""Fleets: groups of replicas behind a gateway, with autoscaling, faults and tenants."""
