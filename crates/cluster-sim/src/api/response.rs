//! Response to an API request: a document or a watch.

use serde_json::{Value, json};

use super::{refusal::Refusal, watch::WatchState};

/// Response to an API request.
#[derive(Debug)]
pub(crate) enum ApiResponse {
    Document(DocumentResponse),
    Watch(WatchState),
}

/// Document response with its headers.
#[derive(Debug)]
pub(crate) struct DocumentResponse {
    pub(crate) code: u16,
    pub(crate) document: Value,
    pub(crate) media_type: &'static str,
    /// Warnings for the client, each in its own header `Warning`.
    pub(crate) warnings: Vec<String>,
}

// === impl ApiResponse ===

impl ApiResponse {
    pub(crate) fn new(code: u16, document: Value) -> Self {
        let (media_type, warnings) = ("application/json", Vec::new());
        Self::Document(DocumentResponse { code, document, media_type, warnings })
    }

    pub(crate) fn ok(document: Value) -> Self {
        Self::new(200, document)
    }

    /// Success of a subresource without an object of its own: a binding or an eviction.
    pub(crate) fn success_status() -> Self {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
        });
        Self::new(201, status)
    }

    pub(crate) fn refused(refusal: &Refusal) -> Self {
        Self::new(refusal.code, refusal.to_json())
    }

    /// Document with a media type whose parameters name the form that the client requested.
    pub(crate) fn with_media_type(media_type: &'static str, document: Value) -> Self {
        Self::Document(DocumentResponse { code: 200, document, media_type, warnings: Vec::new() })
    }

    #[must_use]
    pub(crate) fn with_warnings(self, warnings: Vec<String>) -> Self {
        match self {
            Self::Document(document) => Self::Document(DocumentResponse { warnings, ..document }),
            watch @ Self::Watch(_) => watch,
        }
    }
}
