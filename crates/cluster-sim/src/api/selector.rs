//! Label and field selectors of lists and watches.

use serde_json::Value;

use super::{
    kind::Kind,
    refusal::Refusal,
    request::{ApiRequest, NamespacedName},
};

/// Selection of objects for a list or a watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    namespace: Option<String>,
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

/// Condition on one label or field.
#[derive(Clone, Debug)]
struct Requirement {
    key: String,
    condition: Condition,
}

#[derive(Clone, Debug)]
enum Condition {
    Equals(String),
    NotEquals(String),
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

// === impl Selector ===

impl Selector {
    /// Parses the selectors of a request.
    pub(crate) fn of(
        kind: &Kind,
        namespace: Option<&String>,
        request: &ApiRequest,
    ) -> Result<Self, Refusal> {
        let parse =
            |text: &str| split_requirements(text).into_iter().map(Requirement::parse).collect();
        let fields: Vec<Requirement> = parse(request.parameter("fieldSelector"));
        let unsupported =
            fields.iter().find(|field| !kind.selectable_fields.contains(&field.key.as_str()));
        if let Some(field) = unsupported {
            let reason = format!("field label not supported: {}", field.key);
            return Err(Refusal::bad_request(reason));
        }
        let labels = parse(request.parameter("labelSelector"));
        Ok(Self { namespace: namespace.cloned(), labels, fields })
    }

    /// True for objects in the request's namespace, even if the selectors exclude them.
    pub(crate) fn is_in_scope(&self, id: &NamespacedName) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| namespace == id.namespace)
    }

    /// True if there are no label and field selectors.
    pub(crate) fn selects_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Key by which a list sorts an object, and at which the next page begins.
    pub(crate) fn key(&self, id: &NamespacedName) -> String {
        match (&self.namespace, id.namespace.as_str()) {
            (None, namespace) if !namespace.is_empty() => format!("{namespace}/{}", id.name),
            _ => id.name.clone(),
        }
    }

    /// True if the object is selected.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let is_in_namespace =
            self.namespace.as_deref().is_none_or(|namespace| metadata["namespace"] == namespace);
        let label = |requirement: &Requirement| {
            let value = metadata["labels"].get(&requirement.key).and_then(Value::as_str);
            requirement.condition.matches(value)
        };
        let field = |requirement: &Requirement| {
            let path = requirement.key.split('.');
            let value = path.fold(object, |value, key| &value[key]).as_str();
            // An unset field equals the empty text.
            requirement.condition.matches(Some(value.unwrap_or_default()))
        };
        is_in_namespace && self.labels.iter().all(label) && self.fields.iter().all(field)
    }
}

// === impl Requirement ===

impl Requirement {
    fn parse(text: &str) -> Self {
        let requirement =
            |key: &str, condition: Condition| Self { key: key.trim().to_owned(), condition };
        let trimmed = |text: &str| text.trim().to_owned();
        // `!=` precedes `=`, which it contains.
        if let Some((key, values)) = text.split_once(" notin ") {
            return requirement(key, Condition::NotIn(parse_set(values)));
        }
        if let Some((key, values)) = text.split_once(" in ") {
            return requirement(key, Condition::In(parse_set(values)));
        }
        if let Some((key, value)) = text.split_once("!=") {
            return requirement(key, Condition::NotEquals(trimmed(value)));
        }
        if let Some((key, value)) = text.split_once('=') {
            // `==` means the same as `=`.
            return requirement(key, Condition::Equals(trimmed(value.trim_start_matches('='))));
        }
        match text.strip_prefix('!') {
            Some(key) => requirement(key, Condition::DoesNotExist),
            None => requirement(text, Condition::Exists),
        }
    }
}

// === impl Condition ===

impl Condition {
    fn matches(&self, value: Option<&str>) -> bool {
        let is_one_of = |values: &[String]| {
            value.is_some_and(|value| values.iter().any(|candidate| candidate == value))
        };
        match self {
            Self::Equals(expected) => value == Some(expected),
            Self::NotEquals(expected) => value != Some(expected),
            Self::In(values) => is_one_of(values),
            Self::NotIn(values) => !is_one_of(values),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
        }
    }
}

/// Splits a selector at the commas outside parentheses.
fn split_requirements(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let requirements = text.split(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    requirements.map(str::trim).filter(|requirement| !requirement.is_empty()).collect()
}

fn parse_set(text: &str) -> Vec<String> {
    let list = text.trim().trim_start_matches('(').trim_end_matches(')');
    list.split(',').map(|item| item.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selects(labels: &str, object: &Value) -> bool {
        let query = [("labelSelector".to_owned(), labels.to_owned())].into();
        let request = ApiRequest { query, ..ApiRequest::default() };
        let kind = Kind::find("", "v1", "pods").expect("a kind");
        Selector::of(kind, None, &request).expect("a selector").matches(object)
    }

    #[test]
    fn labels_are_selected_by_equality_and_by_sets() {
        let object = json!({"metadata": {"labels": {"a": "1", "b": "2"}}});
        for (labels, expected) in [
            ("", true),
            ("a=1,b==2", true),
            ("a=2", false),
            ("a!=2,c!=1", true),
            ("a in (1, 3),b notin (3)", true),
            ("a notin (1)", false),
            ("a,!c", true),
            ("c", false),
        ] {
            assert_eq!(selects(labels, &object), expected, "{labels}");
        }
    }
}
