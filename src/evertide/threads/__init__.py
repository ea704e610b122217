"""Background threads: run, repeat, observe and stop them.

watched     `WatchedThread`: a thread whose failure is reported
ticker      `Ticker`: a thread that repeats its work at an interval
stopping    ending long work early
steps       progress reports from inside long work
failures    `Failures`: background work that fails and is retried
outage_log  `OutageLog`, `OutageLogs`: log a failure that retries repeat once
"""
