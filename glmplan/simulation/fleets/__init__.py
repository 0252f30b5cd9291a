"""Fleets: replicas behind a gateway, autoscaling, faults and tenants."""
