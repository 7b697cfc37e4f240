#!/bin/sh
# threads.sh PROGRAM: a test under the thread sanitizer, which has nothing to find in a program that
# can start neither a thread nor another program (that of forks is its own). libgomp has one thread
# there. Such a program is skipped; it runs under the other sanitizers.
command -v nm >/dev/null || exec "$1" # nobody says what it can start
nm -u "$1" | grep -qE ' (pthread_create|system|popen|exec[a-z]*|posix_spawnp?)(@|$)' || {
    echo "skipped: ${1##*/} has one thread"
    exit 77
}
exec "$1"
