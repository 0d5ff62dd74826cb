#!/bin/sh
# nvidia-smi of a simulated machine, as far as NVML has no call for what it does: it sets the time slices of
# a GPU, and resets one that nobody has open. What it was told is in nvidia-smi/ of the machine's folder: in
# <GPU>.timeslice what was set last, and <GPU>.reset until the library is initialised and finds it reset.
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
        # Each process that has the library initialised has a lock on this.
        exec 9>>"$machine/in-use"
        flock -n 9 || fail "GPU $3 is currently in use by one or more other processes." 255
        : >"$told/$3.reset"
        ;;
    *) fail "Invalid combination of input arguments. This is a simulation." 2 ;;
esac
