"""The whole stack on this machine, without a cloud account: functions, two instances, a bucket, traces, metrics."""
