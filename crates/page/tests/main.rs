//! Tests of the page's files.

mod assets;
