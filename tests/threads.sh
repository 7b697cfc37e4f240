#!/bin/sh
# threads.sh PROGRAM: a test under the thread sanitizer, which has nothing to find in a program that
# can start neither a thread nor another program (that of forks is its own). libgomp has one thread
# there. Such a program is skipped; it runs under the other sanitizers. gcc's sanitizer leaves these
# functions to other libraries (U), clang's is in the program with its own of them (W): none is
# skipped there.
command -v nm >/dev/null || exec "$1" # nobody says what it can start
nm "$1" | grep -qE ' [UW] (pthread_create|system|popen|exec[a-z]*|posix_spawnp?)(@|$)' || {
    echo "skipped: ${1##*/} has one thread"
    exit 77
}
exec "$1"
