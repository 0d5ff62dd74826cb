#!/bin/sh
# nvidia-cuda-mps-control of a simulated machine: a control daemon that answers commands and enforces no limit.
#
# Commands and answers have the format of the real program. start_server creates the only server, which has the
# daemon's own process id. Daemon and command line communicate by named pipes in a format of this script, since no
# CUDA program connects. The file mps/<GPU>.clients in the machine's folder has one client of the server per line.
# The file mps/<GPU> has the fault: "refuse <message>", "hang", or "fault" for the server.
set -u
pipe=${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}
running=$pipe/nvidia-cuda-mps-control.pid
fault=${0%/host/usr/bin/*}/mps/${CUDA_VISIBLE_DEVICES:-all}
clients=$fault.clients

fail() {
    echo "$1" >&2
    exit 1
}

# Sets $kind and $why to the fault of the GPU's daemon and its message.
look_for_fault() {
    kind= why=
    if [ -e "$fault" ]; then read -r kind why <"$fault"; fi
}

# Prints a limit as the real program does: in whole gibibytes, rounded down.
rounded() {
    case $1 in
        *M) [ "${1%M}" -lt 1024 ] && echo "$1" || echo "$((${1%M} / 1024))G" ;;
        *) echo "$1" ;;
    esac
}

# Prints the pids of all clients in one line, because an answer of this daemon is one line.
client_list() {
    [ ! -e "$clients" ] || tr '\n' ' ' <"$clients"
    echo
}

terminate() {
    others=$(grep -vx "$1" "$clients")
    [ -z "$others" ] && : >"$clients" || echo "$others" >"$clients"
    echo
}

answer() {
    case $command in
        get_default_active_thread_percentage) echo "$percent" ;;
        set_default_active_thread_percentage) percent=$first.0 && echo "$percent" ;;
        get_default_device_pinned_mem_limit) rounded "$limit" ;;
        set_default_device_pinned_mem_limit) limit=$second && echo ;;
        start_server) server=$$ server_percent=$percent server_limit=$limit && echo ;;
        get_server_list) echo "$server" ;;
        get_active_thread_percentage) echo "$server_percent" ;;
        set_active_thread_percentage) server_percent=$second.0 && echo "$server_percent" ;;
        get_device_pinned_mem_limit) rounded "$server_limit" ;;
        set_device_pinned_mem_limit) server_limit=$third && echo ;;
        get_server_status) [ "$kind" = fault ] && echo FAULT || echo ACTIVE ;;
        get_client_list) client_list ;;
        terminate_client) terminate "$second" ;;
        quit) echo ;;
        *) echo "Unknown command: $command" ;;
    esac
}

serve() {
    look_for_fault
    [ "$kind" != refuse ] || fail "$why"
    mkdir -p "$pipe" && rm -f "$pipe/control" && mkfifo "$pipe/control" || exit 1
    # Opened for reading and writing, so that the open does not wait for the other side.
    exec 3<>"$pipe/control"
    echo $$ >"$running"
    percent=100.0 limit= server= server_percent= server_limit=
    while read -r reply command first second third <&3; do
        look_for_fault
        [ "$kind" != hang ] || kill -STOP $$
        answer 1<>"$reply"
        [ "$command" != quit ] || break
    done
    rm -f "$pipe/control" "$running"
}

ask() {
    daemon=
    [ ! -e "$running" ] || read -r daemon <"$running"
    [ -n "$daemon" ] && kill -0 "$daemon" 2>/dev/null ||
        fail "Cannot find MPS control daemon process"
    reply=$pipe/reply.$$
    mkfifo "$reply" || exit 1
    exec 4<>"$reply"
    while read -r line; do
        echo "$reply $line" 1<>"$pipe/control"
        read -r line <&4
        echo "$line"
    done
    rm -f "$reply"
}

case ${1:-} in
    -d) "$0" -f </dev/null >/dev/null 2>&1 & ;;
    -f) serve ;;
    "") ask ;;
    *) fail "usage: nvidia-cuda-mps-control [-d | -f]" ;;
esac
