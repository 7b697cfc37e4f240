#!/bin/sh
# cmake says which of CUDA's headers it does not find: those of a made-up folder, less cuDNN's.
# usage: tests/cuda/found.sh, in the source folder
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/include"
for header in cuda.h nvrtc.h cublasLt.h; do
    : >"$folder/include/$header"
done

check() { # MGPU_CUDA text
    said=$(CUDA_HOME=$folder cmake -DMGPU_CUDA="$1" -DCMAKE_IGNORE_PATH=/usr/local/cuda/include \
        -DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF -DCMAKE_FIND_USE_CMAKE_ENVIRONMENT_PATH=OFF \
        -P runtime/cuda/find.cmake 2>&1 | tr -s '\n ' ' ')
    case $said in
    *"$2"*) ;;
    *)
        echo "MGPU_CUDA=$1 does not say '$2': $said" >&2
        exit 1
        ;;
    esac
}

check AUTO "CUDA devices: OFF, these headers are not found: cudnn.h (for a GPU, set CUDA_HOME"
check ON "MGPU_CUDA is ON, but these headers are not found: cudnn.h; set CUDA_HOME"
check OFF "CUDA devices: OFF "
check maybe "MGPU_CUDA is ON, OFF or AUTO, not 'maybe'"
: >"$folder/include/cudnn.h"
check AUTO "CUDA devices: ON "
