//! State of the server (objects, gates, faults, log), and its responses to requests.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    answer::Answer,
    discovery,
    fault::{self, Effect, Fault},
    gate::Gate,
    kind::{Kind, Scope},
    list::list_of,
    media,
    options::Options,
    refusal::Refusal,
    request::{ApiRequest, Id, Part, Target},
    selector::Selector,
    shape,
    store::Store,
    strict,
    write::Patched,
};

/// State of the server at one moment.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) log: Vec<ApiRequest>,
    /// Refused requests, with their refusals.
    pub(crate) refused: Vec<(ApiRequest, Refusal)>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) off: BTreeSet<Gate>,
    /// Minor version: 36 for Kubernetes 1.36.
    pub(crate) minor: u32,
}

type Answered = Result<Answer, Refusal>;

// === impl World ===

impl World {
    /// Logs a request and returns the effect of a fault, if one applies.
    pub(crate) fn note(&mut self, request: &ApiRequest) -> Option<Effect> {
        self.log.push(request.clone());
        fault::next_effect(&mut self.faults, request)
    }

    /// Refusal for lack of permission.
    pub(crate) fn forbid(request: &ApiRequest) -> Refusal {
        match Target::of(&request.path) {
            Ok(target @ Target::Many { kind, .. }) => {
                let Target::Many { namespace, .. } = &target else { unreachable!("matched above") };
                let namespace = namespace.as_deref().unwrap_or_default();
                Refusal::forbidden(request.verb(&target), kind, namespace, "")
            }
            Ok(target @ Target::One { kind, .. }) => {
                let Target::One { id, .. } = &target else { unreachable!("matched above") };
                Refusal::forbidden(request.verb(&target), kind, &id.namespace, &id.name)
            }
            _ => Refusal::new(403, "Forbidden", format!("forbidden: {:?}", request.path)),
        }
    }

    pub(crate) fn answer(&mut self, request: &ApiRequest) -> Answer {
        let answered = Target::of(&request.path).and_then(|target| self.dispatch(&target, request));
        answered.unwrap_or_else(|refusal| {
            let answer = Answer::refused(&refusal);
            self.refused.push((request.clone(), refusal));
            answer
        })
    }

    /// Responds as [`World::answer`] does, except that reads find nothing.
    pub(crate) fn hide(&mut self, request: &ApiRequest) -> Answer {
        match Target::of(&request.path) {
            Ok(Target::Many { kind, .. }) if request.method == "GET" && !request.is_watch() => {
                let form = media::form(request).unwrap_or_default();
                Answer::ok(list_of(kind, &[], (self.list_metadata(), form)))
            }
            Ok(Target::One { kind, id, .. }) if request.method == "GET" => {
                Answer::refused(&Refusal::not_found(kind, &id.name))
            }
            _ => self.answer(request),
        }
    }

    fn dispatch(&mut self, target: &Target, request: &ApiRequest) -> Answered {
        if request.method != "GET" {
            media::check_body(request)?;
        }
        if !request.parameter("dryRun").is_empty() {
            let reason = "dryRun is not supported by the embedded API server";
            return Err(Refusal::bad_request(reason));
        }
        match target {
            Target::Version => Ok(Answer::ok(self.version())),
            Target::Discovery(document) if media::is_aggregated(request)? => {
                match document.aggregated() {
                    Some(all) => Ok(Answer::typed(discovery::AGGREGATED, all)),
                    None => document.answer().map(Answer::ok),
                }
            }
            Target::Discovery(document) => document.answer().map(Answer::ok),
            Target::OpenApi(document) => document.answer().map(Answer::ok),
            Target::Many { kind, namespace } => {
                self.serve_collection(kind, namespace.as_ref(), request)
            }
            Target::One { kind, id, part } => self.serve_object(kind, id, (*part, request)),
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
    ) -> Answered {
        let form = media::form(request)?;
        match request.method.as_str() {
            "GET" => {
                let options = Options::of(request)?;
                let selector = Selector::of(kind, namespace, request)?;
                if request.is_watch() {
                    Ok(Answer::Watch(self.watch(kind, (selector, form), &options)))
                } else {
                    self.list(kind, (&selector, form), &options).map(Answer::ok)
                }
            }
            "POST" if namespace.is_some() || kind.scope == Scope::Cluster => {
                let namespace = namespace.cloned().unwrap_or_default();
                let warnings = strict::check(kind, &request.body, request)?;
                let made = self.create(kind, &namespace, request.body.clone())?;
                Ok(Answer::new(201, shape::one(kind, &made, form)).with_warnings(warnings))
            }
            "DELETE" => {
                let selector = Selector::of(kind, namespace, request)?;
                let gone = self.delete_all(kind, &selector)?;
                let gone: Vec<_> = gone.iter().collect();
                Ok(Answer::ok(list_of(kind, &gone, (self.list_metadata(), form))))
            }
            _ => Err(Refusal::no_such_verb()),
        }
    }

    fn serve_object(
        &mut self,
        kind: &'static Kind,
        id: &Id,
        (part, request): (Part, &ApiRequest),
    ) -> Answered {
        if part == Part::Status && kind.status != super::kind::Status::Subresource {
            return Err(Refusal::no_such_path());
        }
        let form = media::form(request)?;
        let shaped = |object: &Value| shape::one(kind, object, form);
        match request.method.as_str() {
            "GET" => Ok(Answer::ok(shaped(&self.find(kind, id)?.object))),
            "PUT" => {
                let warnings = strict::check(kind, &request.body, request)?;
                let replaced = self.update(kind, id, (part, request.body.clone()))?;
                Ok(Answer::ok(shaped(&replaced)).with_warnings(warnings))
            }
            "PATCH" => {
                let Patched { code, object, warnings } = self.patch(kind, id, (part, request))?;
                Ok(Answer::new(code, shaped(&object)).with_warnings(warnings))
            }
            "DELETE" if part == Part::Main => {
                Ok(Answer::ok(self.delete(kind, id, &request.body)?))
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
