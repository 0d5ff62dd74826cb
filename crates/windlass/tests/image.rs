//! The image: the sources of `deploy/Dockerfile`, and the layout that `deploy/image` makes of a built program.

mod layout;
mod sources;
