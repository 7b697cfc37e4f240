#!/bin/sh
# What a build without CUDA says, where there are signs of a GPU and where there are none.
# usage: tests/cuda/none.sh CC, in the source folder
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/main.c" <<'END'
#include "runtime/base/status.h"
#include "runtime/cuda/cuda.h"

#include <stdio.h>

static void note(void *context, const char *text)
{
    (void)context;
    printf("note: %s\n", text);
}

int main(void)
{
    mgpu_set_warning(note, NULL);
    printf("%s\n", mgpu_cuda_default());
    return mgpu_cuda_check(0) == MGPU_EDEVICE ? puts(mgpu_error()) < 0 : 1;
}
END
"$1" -std=gnu11 -D_GNU_SOURCE -I. -o "$folder/none" "$folder/main.c" runtime/cuda/none.c \
    runtime/base/status.c -ldl
echo 'int cuInit(unsigned flags); int cuInit(unsigned flags) { return (int)flags; }' >"$folder/driver.c"
mkdir "$folder/driver"
"$1" -shared -fPIC -o "$folder/driver/libcuda.so.1" "$folder/driver.c"

check() { # what is said, how often the GPU is mentioned
    case $1 in
    *"this build has no CUDA"*"install the headers of CUDA and cuDNN (cuda.h"*) ;;
    *)
        echo "does not say what to install: $1" >&2
        exit 1
        ;;
    esac
    [ "$(echo "$1" | grep -c "a GPU seems to be here")" = "$2" ] || {
        echo "a GPU is not said $2 times: $1" >&2
        exit 1
    }
}

check "$(LD_LIBRARY_PATH=$folder/driver "$folder/none")" 2
said=$("$folder/none")
case $said in
*libcuda* | */dev/nvidia0*) ;; # there is one
*) check "$said" 0 ;;
esac
