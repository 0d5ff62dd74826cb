//! Paged lists of objects, at the current version or an earlier one.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    kind::Kind, media::Form, options::ListOptions, refusal::Refusal, selector::Selector,
    server_state::ServerState, shape, table,
};

/// Continue token: the position after a page, in the real server's format (`continueToken` of `k8s.io/apiserver`).
#[derive(Debug, Serialize, Deserialize)]
struct ContinueToken {
    #[serde(rename = "v")]
    format: String,
    /// Version of the first page, or [`LATEST`].
    #[serde(rename = "rv")]
    version: i64,
    /// First possible key of the next page.
    start: String,
}

/// Version of a list, and the key at which a page starts.
type PageStart = (u64, String);

const FORMAT: &str = "meta.k8s.io/v1";

/// Version in the token of a list that continues with current objects after its own version has expired.
const LATEST: i64 = -1;

// === impl ServerState ===

impl ServerState {
    pub(crate) fn list(
        &self,
        kind: &'static Kind,
        (selector, form): (&Selector, Form),
        options: &ListOptions,
    ) -> Result<Value, Refusal> {
        let (version, start) = self.page_start(options)?;
        let in_scope = self.store.objects_at(kind, version);
        let in_scope = in_scope.iter().filter(|(id, _)| selector.is_in_scope(id));
        let mut remaining: BTreeMap<_, _> =
            in_scope.map(|(id, object)| (selector.key(id), *object)).collect();
        let mut remaining = remaining.split_off(&start).into_iter();
        let (mut page, mut last_key) = (Vec::new(), String::new());
        while options.limit.is_none_or(|limit| page.len() < limit)
            && let Some((key, object)) = remaining.next()
        {
            if selector.matches(object) {
                page.push(object);
            }
            last_key = key;
        }
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if remaining.len() > 0 {
            let version = i64::try_from(version).unwrap_or(LATEST);
            // The smallest key after the last one.
            metadata["continue"] = ContinueToken::new(version, last_key + "\0").encode().into();
            if selector.selects_all() {
                metadata["remainingItemCount"] = remaining.len().into();
            }
        }
        Ok(list_of(kind, &page, (metadata, form)))
    }

    fn page_start(&self, options: &ListOptions) -> Result<PageStart, Refusal> {
        let current_version = self.store.version();
        let version = options.version.filter(|version| *version != 0);
        if let Some(token) = &options.continue_token {
            let ContinueToken { version: page_version, start, .. } = ContinueToken::decode(token)?;
            if version.is_some() {
                let reason = "specifying resource version is not allowed when using continue";
                return Err(Refusal::bad_request(reason));
            }
            let page_version = if page_version == LATEST {
                current_version
            } else {
                u64::try_from(page_version).unwrap_or_default()
            };
            return match self.check_version(page_version) {
                Err(refusal) if refusal.code == 410 => {
                    Err(Refusal::expired_page(&ContinueToken::new(LATEST, start).encode()))
                }
                result => result.map(|()| (page_version, start)),
            };
        }
        match version {
            // With a limit the version is exact. The rule is older than `resourceVersionMatch`.
            Some(version) if options.is_exact_version || options.limit.is_some() => {
                self.check_version(version).map(|()| (version, String::new()))
            }
            Some(version) if version > current_version => {
                Err(Refusal::too_large_version(version, current_version))
            }
            _ => Ok((current_version, String::new())),
        }
    }

    /// Refuses a version that is compacted or in the future.
    fn check_version(&self, version: u64) -> Result<(), Refusal> {
        let (oldest_version, current_version) =
            (self.store.compacted_version(), self.store.version());
        match version {
            version if version < oldest_version => Err(Refusal::expired_list()),
            version if version > current_version => {
                Err(Refusal::too_large_version(version, current_version))
            }
            _ => Ok(()),
        }
    }
}

/// List of a kind in the requested form.
pub(crate) fn list_of(kind: &Kind, objects: &[&Value], (metadata, form): (Value, Form)) -> Value {
    match form {
        Form::Full => json!({
            "kind": format!("{}List", kind.name), "apiVersion": kind.api_version(),
            "metadata": metadata, "items": objects,
        }),
        Form::Metadata => {
            let objects: Vec<_> =
                objects.iter().map(|object| shape::metadata_only(object)).collect();
            json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata, "items": objects,
            })
        }
        Form::Table => table::of(kind, objects, &metadata),
    }
}

// === impl ContinueToken ===

impl ContinueToken {
    fn new(version: i64, start: String) -> Self {
        Self { format: FORMAT.to_owned(), version, start }
    }

    fn encode(&self) -> String {
        let text = serde_json::to_vec(self).expect("two texts and a number are JSON");
        URL_SAFE_NO_PAD.encode(text)
    }

    fn decode(text: &str) -> Result<Self, Refusal> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok();
        let token = bytes.and_then(|bytes| serde_json::from_slice::<Self>(&bytes).ok());
        token.filter(|token| token.format == FORMAT && token.version != 0).ok_or_else(|| {
            Refusal::bad_request("invalid continue token: continue key is not valid")
        })
    }
}
