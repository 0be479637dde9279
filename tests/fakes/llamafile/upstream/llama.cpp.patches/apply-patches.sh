#!/bin/bash
# Stand-in: brings the submodule to what the build needs. Works once, in a clean checkout.
set -e
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$HERE/../llama.cpp"
if [ -n "$(git status --porcelain)" ]; then
    echo "Git status is dirty: not applying anything."
    exit 1
fi
cp -r "$HERE"/llamafile-files/* .
../llama.cpp.patches/renames.sh
rm -f Makefile
cd ..
for patch_file in "$HERE"/patches/*.patch; do
    echo "Applying $(basename "$patch_file")..."
    patch -p1 < "$patch_file"
done
llama.cpp.patches/fetch-ui-assets.sh
