"""Putting a release together on disk: `dist/release/<tag>/`, the folder that is signed and published.

    opencoti-release.json   unsigned index            plan.json    the plan that it was staged by
    <artifact> or parts     .MANIFEST.json .chunks    NOTES.md     the text of the release, no asset
    <artifact>.cdx.json     evidence *.json

`provenance`, `sign` and `sums` add `<tag>.intoto.jsonl`, `*.minisig` and `SHA256SUMS`.
"""
