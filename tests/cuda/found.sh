#!/bin/sh
# cmake says which of CUDA's headers it does not find, or what is wrong with those that it finds: of
# a made-up folder, at first less cuDNN's.
# usage: tests/cuda/found.sh GENERATOR CC FOLDERS, in the source folder; FOLDERS: of headers that
# serve, none or with ; between them
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/include"
for header in cuda.h nvrtc.h cublasLt.h; do
    : >"$folder/include/$header"
done
cat >"$folder/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(found LANGUAGES C)
set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)
set(CMAKE_FIND_USE_CMAKE_ENVIRONMENT_PATH OFF)
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
include($PWD/runtime/cuda/find.cmake)
END
generator=$1
cc=$2
serve=$3

check() { # MGPU_CUDA text options
    cuda=$1
    text=$2
    shift 2
    said=$(CUDA_HOME=$folder cmake -G "$generator" -S "$folder" -B "$folder/build" \
        -DCMAKE_C_COMPILER="$cc" -DMGPU_CUDA="$cuda" "$@" 2>&1 | tr -s '\n ' ' ')
    case $said in
    *"$text"*) ;;
    *)
        echo "MGPU_CUDA=$cuda does not say '$text': $said" >&2
        exit 1
        ;;
    esac
}

check_made() { # MGPU_CUDA text
    check "$1" "$2" -DCMAKE_IGNORE_PATH=/usr/local/cuda/include
}

check_made AUTO "CUDA devices: OFF, these headers are not found: cudnn.h (for a GPU, set CUDA_HOME"
check_made ON "MGPU_CUDA is ON, but these headers are not found: cudnn.h; set CUDA_HOME"
check_made OFF "CUDA devices: OFF "
check_made maybe "MGPU_CUDA is ON, OFF or AUTO, not 'maybe'"
echo '#define CUDNN_VERSION 8902' >"$folder/include/cudnn.h"
echo '#define CUDA_VERSION 13000' >"$folder/include/cuda.h"
wrong="the headers in $folder/include do not compile:"
check_made AUTO "CUDA devices: OFF, $wrong cuDNN 9.8 or newer is needed (for a GPU, set CUDA_HOME"
check_made OFF "CUDA devices: OFF "
echo '#define CUDA_VERSION 11080' >"$folder/include/cuda.h"
check_made AUTO "CUDA devices: OFF, $wrong CUDA 13 or newer is needed"
check_made ON "MGPU_CUDA is ON, but $wrong CUDA 13 or newer is needed; set CUDA_HOME"
echo '#define CUDA_VERSION 13000' >"$folder/include/cuda.h"
echo '#include "not_there.h"' >"$folder/include/cublasLt.h"
check_made AUTO "CUDA devices: OFF, $wrong"
check_made AUTO "not_there.h" # in the compiler's words
[ -z "$serve" ] || check ON "CUDA devices: ON " -DCMAKE_INCLUDE_PATH="$serve" -DCMAKE_IGNORE_PATH=
