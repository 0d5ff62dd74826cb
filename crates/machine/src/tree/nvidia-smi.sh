#!/bin/sh
# nvidia-smi of a simulated machine, as far as NVML has no call for what it does: it sets the time slices of
# a GPU. What was set is in nvidia-smi/<GPU>.timeslice of the machine's folder.
set -u
told=${0%/host/usr/bin/*}/nvidia-smi

fail() {
    echo "$1"
    exit "$2"
}

case "$*" in
    "compute-policy -i "*" --set-timeslice "[0-3]) mkdir -p "$told" && echo "$5" >"$told/$3.timeslice" ;;
    *) fail "Invalid combination of input arguments. This is a simulation." 2 ;;
esac
