//! The page's files, and the page in a browser.

mod assets;
