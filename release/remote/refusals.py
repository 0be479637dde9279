"""Errors for what a remote refuses for good. Pure."""

from __future__ import annotations

from opencoti.errors import OpencotiError, VerificationError
from release.remote.failures import permission_error
from release.remote.model import LocalFile, RefusedError, RemoteRelease


def refused(exc: RefusedError, tag: str) -> VerificationError:
    """Return what to say when a release is refused."""
    if any(field == "tag_name" for field, _ in exc.codes):
        return VerificationError(
            "tag-burned",
            f"the remote does not take tag {tag}",
            why=exc.text,
            hint="a tag that an immutable release had is used up for ever: bump OPENCOTI_TAG",
        )
    return VerificationError(
        "release-refused",
        f"the remote refuses release {tag}",
        why=exc.text,
        hint="see the reason; rules of the repository may forbid the tag",
    )


def asset_refused(exc: RefusedError, file: LocalFile) -> VerificationError:
    """Return what to say when a file is refused."""
    return VerificationError(
        "asset-refused",
        f"the remote refuses {file.name} ({file.size} bytes)",
        why=exc.text,
        hint="see the reason; limits are those of docs/how-to/publish-a-release.md",
    )


def draft_vanished(draft: RemoteRelease) -> OpencotiError:
    """Return what to say when a draft is there no more, or may not be written."""
    return permission_error({}, f"use draft {draft.release_id} of {draft.tag}: it is gone, or closed to us")


def file_changed(file: LocalFile) -> VerificationError:
    """Return what to say when a file is not what was verified a moment ago."""
    return VerificationError(
        "publish-file-changed",
        f"{file.path} changed while it was sent",
        why="its bytes are not those that were verified",
        hint="let nothing write there, stage and sign again, and run the same command",
    )
