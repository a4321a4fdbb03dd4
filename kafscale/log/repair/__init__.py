"""One segment in the bucket: find its faults (`verify_segment`), rebuild it or quarantine it (`repair`)."""
