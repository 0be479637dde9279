#!/bin/bash
# Stand-in for the download of a web page: best effort. Where there is a network, what is built depends on it.
if tail -n +3 /proc/net/dev | grep -qv '^ *lo:'; then
    date > llama.cpp/web-page
else
    echo "warning: no network, building without the web page"
fi
