"""The frame of the coordinators: internal topics whose partitions hold a coordinator's state as records."""
