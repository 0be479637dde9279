"""The build side: from pinned upstream source to one verified, executable artifact."""
