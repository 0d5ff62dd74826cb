//! Response to a request: a document or a watch.

use serde_json::{Value, json};

use super::{refusal::Refusal, watch::Watched};

/// Response to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Whole(Whole),
    Watch(Watched),
}

/// Document with its headers.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) code: u16,
    pub(crate) document: Value,
    pub(crate) media: &'static str,
    /// Warnings that clients print, each in a header of its own.
    pub(crate) warnings: Vec<String>,
}

// === impl Answer ===

impl Answer {
    pub(crate) fn new(code: u16, document: Value) -> Self {
        let (media, warnings) = ("application/json", Vec::new());
        Self::Whole(Whole { code, document, media, warnings })
    }

    pub(crate) fn ok(document: Value) -> Self {
        Self::new(200, document)
    }

    /// Success of a subresource that creates no object: a binding or an eviction.
    pub(crate) fn done() -> Self {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
        });
        Self::new(201, status)
    }

    pub(crate) fn refused(refusal: &Refusal) -> Self {
        Self::new(refusal.code, refusal.to_json())
    }

    /// Document with a media type whose parameters name the form that the client requested.
    pub(crate) fn typed(media: &'static str, document: Value) -> Self {
        Self::Whole(Whole { code: 200, document, media, warnings: Vec::new() })
    }

    #[must_use]
    pub(crate) fn with_warnings(self, warnings: Vec<String>) -> Self {
        match self {
            Self::Whole(whole) => Self::Whole(Whole { warnings, ..whole }),
            watch @ Self::Watch(_) => watch,
        }
    }
}
