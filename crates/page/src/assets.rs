//! The page's files, embedded in the program.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// A file of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asset {
    /// Name below the page's prefix.
    pub name: &'static str,
    /// Media type.
    pub media_type: &'static str,
    /// Content.
    pub text: &'static str,
}

/// Value of the header `Content-Security-Policy`: scripts, styles and data come from the page's own server, and no site
/// may show the page in a frame.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' \
     data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

macro_rules! assets {
    ($($name:literal),+ $(,)?) => {
        &[$(Asset {
            name: $name,
            media_type: media_type($name),
            text: include_str!(concat!("../assets/", $name)),
        }),+]
    };
}

/// Media type of a file, by the end of its name.
const fn media_type(name: &str) -> &'static str {
    match name.as_bytes() {
        [.., b'.', b'j', b's'] => "text/javascript; charset=utf-8",
        [.., b'.', b'c', b's', b's'] => "text/css; charset=utf-8",
        [.., b'.', b's', b'v', b'g'] => "image/svg+xml",
        _ => "text/html; charset=utf-8",
    }
}

// === impl Asset ===

impl Asset {
    /// All files.
    pub const ALL: &'static [Self] = assets![
        "card.js",
        "cluster.js",
        "colours.js",
        "details.js",
        "dom.js",
        "format.js",
        "frames.js",
        "header.js",
        "history.js",
        "icon.svg",
        "index.html",
        "keys.js",
        "main.js",
        "node.js",
        "page.css",
        "parts.js",
        "pending.js",
        "picture.js",
        "pod.js",
        "protocol.js",
        "route.js",
        "search.js",
        "state.js",
        "tiles.js",
        "toolbar.js",
        "walk.js",
        "width.js",
        "words.js",
    ];

    /// Finds a file by its name. The empty name is the page itself.
    pub fn find(name: &str) -> Option<&'static Self> {
        let name = if name.is_empty() { "index.html" } else { name };
        Self::ALL.iter().find(|asset| asset.name == name)
    }

    /// Value of the header `ETag`, which changes with the content.
    pub fn etag(&self) -> String {
        let mut hasher = DefaultHasher::new();
        (self.name, self.text).hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }
}
