#!/bin/sh
# Stands in for `noxw` and for every Python that a workflow starts, by the name that it is called with. Environments
# are links to this file; compilers do nothing; a few commands go to stand_in.py; everything else is run for real,
# by the Python of the tests (REPLAY_PYTHON) in the unpacked source of the release.
set -eu

environment() { # FOLDER
    mkdir -p "$1/bin"
    ln -s "$(readlink -f "$0")" "$1/bin/python"
}

case "${0##*/} $*" in
"noxw -s "*)
    shift
    for session in "$@"; do environment ".nox/$session"; done
    exit ;;
"python3 -m venv --without-pip "*) environment "$4"; exit ;;
"python3 -m pip "*" --require-hashes "*) exit ;;
"python -m ci images "* | "python -m ci vendor"*) exit ;;
"python -m ci build "*) # BACKEND --arch ARCH …
    mkdir -p "$OPENCOTI_BUILD_CACHE/stages/$4-$6"
    : > "$OPENCOTI_BUILD_CACHE/stages/$4-$6/stage.json"
    exit ;;
esac
case "$0" in
*/.small/bin/python) # only what the small lock names can be imported
    export PYTHONPATH="$REPLAY_FOLDER/small" ;;
esac
case "$*" in
"-m ci package "* | "-m ci job smoke "* | "-m release publish "*)
    exec "$REPLAY_PYTHON" "$REPLAY_FOLDER/stand_in.py" "$@" ;;
esac
exec "$REPLAY_PYTHON" "$@"
