//! The image: the sources of `deploy/Dockerfile`, the layout that `deploy/image` makes of a built program, and
//! archives.

mod archive;
mod layout;
mod sources;
