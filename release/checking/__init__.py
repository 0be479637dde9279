"""Looking at a release from outside, with the client's own code: after publishing, and on a schedule."""
