//! State of the server (objects, gates, faults, log), and the dispatch of requests.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    discovery,
    fault::{self, Effect, Fault},
    gate::Gate,
    kind::{Kind, Scope},
    list::list_of,
    media,
    options::ListOptions,
    refusal::Refusal,
    request::{ApiRequest, NamespacedName, Part, Target},
    response::ApiResponse,
    selector::Selector,
    shape,
    store::Store,
    strict,
    write::PatchResult,
};

/// State of the server at one moment.
#[derive(Debug)]
pub(crate) struct ServerState {
    pub(crate) store: Store,
    pub(crate) requests: Vec<ApiRequest>,
    /// Refused requests, with their refusals.
    pub(crate) refused_requests: Vec<(ApiRequest, Refusal)>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) disabled_gates: BTreeSet<Gate>,
    /// Minor version: 36 for Kubernetes 1.36.
    pub(crate) minor: u32,
}

type HandlerResult = Result<ApiResponse, Refusal>;

// === impl ServerState ===

impl ServerState {
    /// Logs a request and returns the effect of a fault, if one applies.
    pub(crate) fn log_request(&mut self, request: &ApiRequest) -> Option<Effect> {
        self.requests.push(request.clone());
        fault::next_effect(&mut self.faults, request)
    }

    /// Refusal for lack of permission.
    pub(crate) fn forbid(request: &ApiRequest) -> Refusal {
        match Target::of(&request.path) {
            Ok(target @ Target::Collection { kind, .. }) => {
                let Target::Collection { namespace, .. } = &target else {
                    unreachable!("matched above")
                };
                let namespace = namespace.as_deref().unwrap_or_default();
                Refusal::forbidden(request.verb(&target), kind, namespace, "")
            }
            Ok(target @ Target::Object { kind, .. }) => {
                let Target::Object { id, .. } = &target else { unreachable!("matched above") };
                Refusal::forbidden(request.verb(&target), kind, &id.namespace, &id.name)
            }
            _ => Refusal::new(403, "Forbidden", format!("forbidden: {:?}", request.path)),
        }
    }

    pub(crate) fn respond(&mut self, request: &ApiRequest) -> ApiResponse {
        let result = Target::of(&request.path).and_then(|target| self.dispatch(&target, request));
        result.unwrap_or_else(|refusal| {
            let response = ApiResponse::refused(&refusal);
            self.refused_requests.push((request.clone(), refusal));
            response
        })
    }

    /// Responds as [`ServerState::respond`] does, except that reads find no objects.
    pub(crate) fn respond_empty(&mut self, request: &ApiRequest) -> ApiResponse {
        match Target::of(&request.path) {
            Ok(Target::Collection { kind, .. })
                if request.method == "GET" && !request.is_watch() =>
            {
                let form = media::form(request).unwrap_or_default();
                ApiResponse::ok(list_of(kind, &[], (self.list_metadata(), form)))
            }
            Ok(Target::Object { kind, id, .. }) if request.method == "GET" => {
                ApiResponse::refused(&Refusal::not_found(kind, &id.name))
            }
            _ => self.respond(request),
        }
    }

    fn dispatch(&mut self, target: &Target, request: &ApiRequest) -> HandlerResult {
        if request.method != "GET" {
            media::check_body(request)?;
        }
        if !request.parameter("dryRun").is_empty() {
            let reason = "dryRun is not supported by the embedded API server";
            return Err(Refusal::bad_request(reason));
        }
        match target {
            Target::Version => Ok(ApiResponse::ok(self.version())),
            Target::Discovery(document) if media::is_aggregated(request)? => {
                match document.aggregated() {
                    Some(aggregated) => {
                        Ok(ApiResponse::with_media_type(discovery::AGGREGATED, aggregated))
                    }
                    None => document.render().map(ApiResponse::ok),
                }
            }
            Target::Discovery(document) => document.render().map(ApiResponse::ok),
            Target::OpenApi(document) => document.render().map(ApiResponse::ok),
            Target::Collection { kind, namespace } => {
                self.serve_collection(kind, namespace.as_ref(), request)
            }
            Target::Object { kind, id, part } => self.serve_object(kind, id, (*part, request)),
            Target::Binding { pod } if request.method == "POST" => self.bind(pod, &request.body),
            Target::Eviction { pod } if request.method == "POST" => self.evict(pod, &request.body),
            Target::Review if request.method == "POST" => Ok(self.review(&request.body)),
            Target::Binding { .. } | Target::Eviction { .. } | Target::Review => {
                Err(Refusal::no_such_verb())
            }
        }
    }

    fn serve_collection(
        &mut self,
        kind: &'static Kind,
        namespace: Option<&String>,
        request: &ApiRequest,
    ) -> HandlerResult {
        let form = media::form(request)?;
        match request.method.as_str() {
            "GET" => {
                let options = ListOptions::of(request)?;
                let selector = Selector::of(kind, namespace, request)?;
                if request.is_watch() {
                    Ok(ApiResponse::Watch(self.watch(kind, (selector, form), &options)))
                } else {
                    self.list(kind, (&selector, form), &options).map(ApiResponse::ok)
                }
            }
            "POST" if namespace.is_some() || kind.scope == Scope::Cluster => {
                let namespace = namespace.cloned().unwrap_or_default();
                let warnings = strict::check(kind, &request.body, request)?;
                let object = self.create(kind, &namespace, request.body.clone())?;
                Ok(ApiResponse::new(201, shape::in_form(kind, &object, form))
                    .with_warnings(warnings))
            }
            "DELETE" => {
                let selector = Selector::of(kind, namespace, request)?;
                let objects = self.delete_all(kind, &selector)?;
                let objects: Vec<_> = objects.iter().collect();
                Ok(ApiResponse::ok(list_of(kind, &objects, (self.list_metadata(), form))))
            }
            _ => Err(Refusal::no_such_verb()),
        }
    }

    fn serve_object(
        &mut self,
        kind: &'static Kind,
        id: &NamespacedName,
        (part, request): (Part, &ApiRequest),
    ) -> HandlerResult {
        if part == Part::Status && kind.status != super::kind::Status::Subresource {
            return Err(Refusal::no_such_path());
        }
        let form = media::form(request)?;
        let in_requested_form = |object: &Value| shape::in_form(kind, object, form);
        match request.method.as_str() {
            "GET" => Ok(ApiResponse::ok(in_requested_form(&self.find(kind, id)?.object))),
            "PUT" => {
                let warnings = strict::check(kind, &request.body, request)?;
                let object = self.update(kind, id, (part, request.body.clone()))?;
                Ok(ApiResponse::ok(in_requested_form(&object)).with_warnings(warnings))
            }
            "PATCH" => {
                let PatchResult { code, object, warnings } =
                    self.patch(kind, id, (part, request))?;
                Ok(ApiResponse::new(code, in_requested_form(&object)).with_warnings(warnings))
            }
            "DELETE" if part == Part::Main => {
                Ok(ApiResponse::ok(self.delete(kind, id, &request.body)?))
            }
            _ => Err(Refusal::no_such_verb()),
        }
    }

    /// Metadata of a list at the current version.
    fn list_metadata(&self) -> Value {
        json!({"resourceVersion": self.store.version().to_string()})
    }

    fn version(&self) -> Value {
        let minor = self.minor;
        json!({
            "major": "1", "minor": minor.to_string(), "gitVersion": format!("v1.{minor}.0"),
            "gitCommit": "", "gitTreeState": "clean", "buildDate": "2026-01-01T00:00:00Z",
            "goVersion": "go1.25", "compiler": "gc", "platform": "linux/amd64",
        })
    }
}
