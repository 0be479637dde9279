#!/bin/sh
# Stands in for `noxw` and for every Python that a workflow starts, by the name that it is called with. Environments
# are links to this file; images and the upstream source are not fetched; a few commands go to stand_in.py; everything
# else is run for real, by the Python of the tests (REPLAY_PYTHON) in the unpacked source of the release.
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
esac
case "$0" in
*/.small/bin/python) # only what the small lock names can be imported
    export PYTHONPATH="$REPLAY_FOLDER/small" ;;
esac
case "$*" in
"-m ci build "* | "-m ci package "* | "-m ci job smoke "* | "-m ci job bench "* | "-m release publish "*)
    exec "$REPLAY_PYTHON" "$REPLAY_FOLDER/stand_in.py" "$@" ;;
esac
exec "$REPLAY_PYTHON" "$@"
