#!/bin/sh
# nvidia-smi of a simulated machine, with the two operations that NVML lacks: it sets the time slice of a GPU, and
# resets a GPU that no process uses. The folder nvidia-smi/ of the machine has the requests: <GPU>.timeslice contains
# the last time slice, and <GPU>.reset exists from the request until the library is initialised and applies the reset.
set -u
machine=${0%/host/usr/bin/*}
told=$machine/nvidia-smi

fail() {
    echo "$1"
    exit "$2"
}

mkdir -p "$told" || exit 255
case "$*" in
    "compute-policy -i "*" --set-timeslice "[0-3]) echo "$5" >"$told/$3.timeslice" ;;
    "--gpu-reset -i "*)
        # Each process that has initialised the library holds a lock on this file.
        exec 9>>"$machine/in-use"
        flock -n 9 || fail "GPU $3 is currently in use by one or more other processes." 255
        : >"$told/$3.reset"
        ;;
    *) fail "Invalid combination of input arguments. This is a simulation." 2 ;;
esac
