//! Everything the server has: objects, gates, faults and the log; and what it answers.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    fault::{self, Effect, Fault},
    gate::Gate,
    kind::{Kind, Scope},
    refusal::Refusal,
    request::{Asked, Id, Part, Target},
    selector::Selector,
    shape,
    store::Store,
};

/// The server at one moment.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) log: Vec<Asked>,
    /// What of it was refused, and why.
    pub(crate) refused: Vec<(Asked, Refusal)>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) off: BTreeSet<Gate>,
    /// 36 for Kubernetes 1.36.
    pub(crate) minor: u32,
}

/// What is answered.
#[derive(Debug)]
pub(crate) enum Answer {
    Whole(u16, Value),
    Watch(Watched),
}

/// What a watch is about.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) kind: &'static Kind,
    pub(crate) selector: Selector,
    pub(crate) from: u64,
    /// What is told at once: what there is, or why the watch cannot begin.
    pub(crate) first: Vec<Value>,
    pub(crate) ends: bool,
    pub(crate) metadata_only: bool,
}

type Answered = Result<Answer, Refusal>;

// === impl World ===

impl World {
    /// Notes a request and says what a test has in store for it.
    pub(crate) fn note(&mut self, asked: &Asked) -> Option<Effect> {
        self.log.push(asked.clone());
        fault::strike(&mut self.faults, asked)
    }

    /// The refusal of a request without the right to be made.
    pub(crate) fn forbid(asked: &Asked) -> Refusal {
        match Target::of(&asked.path) {
            Ok(target @ Target::Many { kind, .. }) => {
                let Target::Many { namespace, .. } = &target else { unreachable!("matched above") };
                let namespace = namespace.as_deref().unwrap_or_default();
                Refusal::forbidden(asked.verb(&target), kind, namespace, "")
            }
            Ok(target @ Target::One { kind, .. }) => {
                let Target::One { id, .. } = &target else { unreachable!("matched above") };
                Refusal::forbidden(asked.verb(&target), kind, &id.namespace, &id.name)
            }
            _ => Refusal::new(403, "Forbidden", format!("forbidden: {:?}", asked.path)),
        }
    }

    pub(crate) fn answer(&mut self, asked: &Asked) -> Answer {
        let answered = Target::of(&asked.path).and_then(|target| self.attend(&target, asked));
        answered.unwrap_or_else(|refusal| {
            let answer = Answer::Whole(refusal.code, refusal.to_json());
            self.refused.push((asked.clone(), refusal));
            answer
        })
    }

    fn attend(&mut self, target: &Target, asked: &Asked) -> Answered {
        match target {
            Target::Version => Ok(Answer::Whole(200, self.version())),
            Target::Group(group, version) => group_answer(group, version),
            Target::Many { kind, namespace } => self.attend_many(kind, namespace.as_ref(), asked),
            Target::One { kind, id, part } => self.attend_one(kind, id, (*part, asked)),
        }
    }

    fn attend_many(
        &mut self,
        kind: &'static Kind,
        namespace: Option<&String>,
        asked: &Asked,
    ) -> Answered {
        match asked.method.as_str() {
            "GET" => {
                let selector = Selector::of(kind, namespace, asked)?;
                if asked.is_watch() {
                    self.watch(kind, selector, asked)
                } else {
                    Ok(self.list(kind, &selector, asked))
                }
            }
            "POST" if namespace.is_some() || kind.scope == Scope::Cluster => {
                let namespace = namespace.cloned().unwrap_or_default();
                let made = self.create(kind, &namespace, asked.body.clone())?;
                Ok(one(201, made, asked))
            }
            "DELETE" => {
                let selector = Selector::of(kind, namespace, asked)?;
                let gone = self.delete_all(kind, &selector)?;
                Ok(Answer::Whole(200, self.list_of(kind, &gone, asked)))
            }
            _ => Err(Refusal::no_such_verb()),
        }
    }

    fn attend_one(
        &mut self,
        kind: &'static Kind,
        id: &Id,
        (part, asked): (Part, &Asked),
    ) -> Answered {
        if part == Part::Status && kind.status != super::kind::Status::Subresource {
            return Err(Refusal::no_such_path());
        }
        match asked.method.as_str() {
            "GET" => Ok(one(200, self.find(kind, id)?.object.clone(), asked)),
            "PUT" => Ok(one(200, self.update(kind, id, (part, asked.body.clone()))?, asked)),
            "PATCH" => {
                let (code, patched) = self.patch(kind, id, (part, asked))?;
                Ok(one(code, patched, asked))
            }
            "DELETE" if part == Part::Main => {
                Ok(Answer::Whole(200, self.delete(kind, id, &asked.body)?))
            }
            _ => Err(Refusal::no_such_verb()),
        }
    }

    fn version(&self) -> Value {
        let minor = self.minor;
        json!({
            "major": "1", "minor": minor.to_string(), "gitVersion": format!("v1.{minor}.0"),
            "gitCommit": "", "gitTreeState": "clean", "buildDate": "2026-01-01T00:00:00Z",
            "goVersion": "go1.25", "compiler": "gc", "platform": "linux/amd64",
        })
    }

    fn list(&self, kind: &'static Kind, selector: &Selector, asked: &Asked) -> Answer {
        let all = self.store.all(kind).map(|(_, object)| object);
        let found: Vec<_> = all.filter(|object| selector.matches(object)).cloned().collect();
        Answer::Whole(200, self.list_of(kind, &found, asked))
    }

    fn list_of(&self, kind: &Kind, items: &[Value], asked: &Asked) -> Value {
        let metadata = json!({"resourceVersion": self.store.version().to_string()});
        if asked.wants_metadata() {
            let items: Vec<_> = items.iter().map(shape::metadata_only).collect();
            return json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata, "items": items,
            });
        }
        json!({
            "kind": format!("{}List", kind.name), "apiVersion": kind.api_version(),
            "metadata": metadata, "items": items,
        })
    }

    fn watch(&self, kind: &'static Kind, selector: Selector, asked: &Asked) -> Answered {
        let from = match asked.parameter("resourceVersion") {
            "" | "0" => None,
            version => Some(shape::version(version)?),
        };
        let metadata_only = asked.wants_metadata();
        let first = match from {
            None => {
                let all = self.store.all(kind).map(|(_, object)| object);
                let there = all.filter(|object| selector.matches(object));
                there.map(|object| shape::event("ADDED", object, metadata_only)).collect()
            }
            Some(from) if from < self.store.compacted() => {
                let refusal = Refusal::expired(from, self.store.compacted());
                vec![json!({"type": "ERROR", "object": refusal.to_json()})]
            }
            Some(_) => Vec::new(),
        };
        let ends = from.is_some_and(|from| from < self.store.compacted());
        let from = from.unwrap_or_else(|| self.store.version());
        Ok(Answer::Watch(Watched { kind, selector, from, first, ends, metadata_only }))
    }

    /// What a watch tells of the changes after a version.
    pub(crate) fn told(&self, watched: &Watched, after: u64) -> Vec<Value> {
        let meant = |object: &Option<Value>| {
            object.as_ref().filter(|object| watched.selector.matches(object)).cloned()
        };
        let tell = |sort, object: &Value| shape::event(sort, object, watched.metadata_only);
        let changes = self.store.since(watched.kind, after);
        let events = changes.filter_map(|change| match (meant(&change.old), meant(&change.new)) {
            (None, Some(new)) => Some(tell("ADDED", &new)),
            (Some(_), Some(new)) => Some(tell("MODIFIED", &new)),
            (Some(mut old), None) => {
                old["metadata"]["resourceVersion"] = change.version.to_string().into();
                Some(tell("DELETED", &old))
            }
            (None, None) => None,
        });
        events.collect()
    }
}

/// One object as it is wanted.
fn one(code: u16, object: Value, asked: &Asked) -> Answer {
    let wanted = if asked.wants_metadata() { shape::metadata_only(&object) } else { object };
    Answer::Whole(code, wanted)
}

fn group_answer(group: &str, version: &str) -> Answered {
    let resources: Vec<_> = Kind::of_group(group, version)
        .map(|kind| {
            json!({
                "name": kind.resource, "kind": kind.name, "singularName": kind.name.to_lowercase(),
                "namespaced": kind.scope == Scope::Namespaced,
                "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            })
        })
        .collect();
    if resources.is_empty() {
        return Err(Refusal::no_such_path());
    }
    let version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Ok(Answer::Whole(
        200,
        json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version,
            "resources": resources,
        }),
    ))
}
