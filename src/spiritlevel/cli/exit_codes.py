"""What the command returns to the shell."""

REFUSED = 1  # the request could not be met
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
TERMINATED = 143  # 128 + SIGTERM
