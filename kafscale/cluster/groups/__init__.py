"""Groups and their committed offsets, on the frame of `kafscale.cluster.coordinator`. Entered by `GroupCoordinator`."""
