//! Content negotiation: the form of a response, and the media type of a request body.

use super::{refusal::Refusal, request::ApiRequest};

/// Form of the objects in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    /// Full objects.
    #[default]
    Full,
    /// `PartialObjectMetadata`: only metadata.
    Metadata,
    /// `Table`: rows and columns for display.
    Table,
}

/// One alternative of an `Accept` header.
#[derive(Debug)]
struct Clause<'a> {
    media_type: &'a str,
    /// Parameters except `q`.
    parameters: Vec<(&'a str, &'a str)>,
    /// Quality in thousandths.
    quality: u16,
}

/// Media type of all responses. The real server also supports YAML, protobuf and CBOR.
const JSON: &str = "application/json";

/// Media type of protobuf bodies. client-go's typed clients always write protobuf, and accept JSON responses.
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Media types of a `PATCH`, in the order of the real server's message.
pub(crate) const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// Form of objects that a client accepts. Clients that accept only protobuf are refused.
pub(crate) fn form(request: &ApiRequest) -> Result<Form, Refusal> {
    negotiate(&request.accept, |clause| {
        match (clause.get("as"), clause.get("g"), clause.get("v")) {
            ("", ..) => Some(Form::Full),
            ("Table", "meta.k8s.io", "v1" | "v1beta1") => Some(Form::Table),
            ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1") => {
                Some(Form::Metadata)
            }
            _ => None,
        }
    })
}

/// True if the client prefers aggregated discovery.
pub(crate) fn is_aggregated(request: &ApiRequest) -> Result<bool, Refusal> {
    negotiate(&request.accept, |clause| {
        match (clause.get("as"), clause.get("g"), clause.get("v")) {
            ("", ..) => Some(false),
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => Some(true),
            _ => None,
        }
    })
}

/// Refuses a body with an unsupported type or an invalid document.
pub(crate) fn check_body(request: &ApiRequest) -> Result<(), Refusal> {
    let media_type = request.content_type.split(';').next().unwrap_or_default().trim();
    let supported: &[&str] =
        if request.method == "PATCH" { &PATCHES } else { &[JSON, PROTOBUF, ""] };
    if !supported.contains(&media_type) {
        let supported = supported
            .iter()
            .filter(|media_type| !media_type.is_empty())
            .copied()
            .collect::<Vec<_>>();
        return Err(Refusal::unsupported_media_type(&supported.join(", ")));
    }
    match &request.body_error {
        Some(error) => Err(Refusal::bad_request(error.clone())),
        None => Ok(()),
    }
}

/// First acceptable form, in the client's order of preference.
fn negotiate<T>(accept: &str, convert: impl Fn(&Clause<'_>) -> Option<T>) -> Result<T, Refusal> {
    let accept = if accept.trim().is_empty() { JSON } else { accept };
    let mut clauses: Vec<_> = accept.split(',').map(Clause::parse).collect();
    clauses.sort_by_key(|clause| u16::MAX - clause.quality);
    let is_json =
        |clause: &&Clause<'_>| [JSON, "application/*", "*/*"].contains(&clause.media_type);
    let form = clauses.iter().filter(is_json).find_map(convert);
    form.ok_or_else(|| Refusal::not_acceptable(JSON))
}

// === impl Clause ===

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Self {
        let mut segments = text.split(';').map(str::trim);
        let media_type = segments.next().unwrap_or_default();
        let mut parameters: Vec<_> =
            segments.filter_map(|segment| segment.split_once('=')).collect();
        let quality = parameters.iter().find(|(key, _)| *key == "q").map_or(1000, |(_, value)| {
            let digits = value.strip_prefix("0.").unwrap_or_default();
            format!("{digits:0<3.3}").parse().unwrap_or(1000)
        });
        parameters.retain(|(key, _)| *key != "q");
        Self { media_type, parameters, quality }
    }

    fn get(&self, name: &str) -> &str {
        self.parameters.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_accepting(accept: &str) -> ApiRequest {
        ApiRequest { accept: accept.to_owned(), ..ApiRequest::default() }
    }

    #[test]
    fn the_preferred_form_that_the_server_supports_is_chosen() {
        for (accept, expected) in [
            ("", Some(Form::Full)),
            ("*/*", Some(Form::Full)),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Some(Form::Table)),
            ("application/json;as=Table;v=v9;g=meta.k8s.io, application/json", Some(Form::Full)),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                 application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                Some(Form::Metadata),
            ),
            ("application/vnd.kubernetes.protobuf,application/json;q=0.5", Some(Form::Full)),
            (
                "application/json;q=0.5,application/json;as=Table;g=meta.k8s.io;v=v1;q=0.9",
                Some(Form::Table),
            ),
            ("application/json;stream=watch", Some(Form::Full)),
            ("application/vnd.kubernetes.protobuf", None),
            ("application/json;as=Table;g=meta.k8s.io;v=v9", None),
        ] {
            assert_eq!(form(&request_accepting(accept)).ok(), expected, "{accept}");
        }
    }

    #[test]
    fn discovery_is_aggregated_for_clients_that_accept_it() {
        let aggregated_type =
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        assert_eq!(
            is_aggregated(&request_accepting(&format!("{aggregated_type},application/json"))),
            Ok(true)
        );
        assert_eq!(is_aggregated(&request_accepting("application/json")), Ok(false));
    }

    #[test]
    fn a_body_of_another_type_is_refused() {
        for (method, media, code) in [
            ("POST", "application/json; charset=utf-8", None),
            ("POST", "", None),
            ("POST", PROTOBUF, None),
            ("POST", "application/cbor", Some(415)),
            ("PATCH", "application/apply-patch+yaml", None),
            ("PATCH", "application/json", Some(415)),
        ] {
            let (method, content_type) = (method.to_owned(), media.to_owned());
            let request = ApiRequest { method, content_type, ..ApiRequest::default() };
            assert_eq!(check_body(&request).err().map(|refusal| refusal.code), code, "{media}");
        }
    }
}
