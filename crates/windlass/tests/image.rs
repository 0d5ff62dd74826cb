//! The image: the sources of `deploy/Dockerfile`.

mod sources;
