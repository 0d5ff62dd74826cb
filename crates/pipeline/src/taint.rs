//! Taints of nodes and tolerations of pods, with the semantics of Kubernetes.

use serde::Deserialize;

/// A taint that keeps pods off a node. `PreferNoSchedule` does not, and is left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// Key of the taint.
    pub key: String,
    /// Value; may be empty.
    pub value: String,
    /// `NoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A pod's toleration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// Key; empty for all keys.
    #[serde(default)]
    pub key: String,
    /// Comparison of the value.
    #[serde(default)]
    pub operator: Operator,
    /// Value for [`Operator::Equal`].
    #[serde(default)]
    pub value: String,
    /// Effect; empty for all effects.
    #[serde(default)]
    pub effect: String,
    /// Seconds until the pod is evicted despite the toleration, for the effect `NoExecute`.
    pub toleration_seconds: Option<i64>,
}

/// Comparison of a toleration with a taint's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Operator {
    /// The values are equal.
    #[default]
    #[serde(alias = "")]
    Equal,
    /// Any value.
    Exists,
}

// === impl Toleration ===

impl Toleration {
    /// True if a pod with this toleration can start on a node with the taint, and is not evicted later.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        let is_evicted = taint.effect == "NoExecute" && self.toleration_seconds.is_some();
        !is_evicted
            && (self.effect.is_empty() || self.effect == taint.effect)
            && (self.key.is_empty() || self.key == taint.key)
            && match self.operator {
                Operator::Exists => true,
                Operator::Equal => !self.key.is_empty() && self.value == taint.value,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_follow_the_rules_of_kubernetes() {
        let taint = Taint { key: "edge".into(), value: "yes".into(), effect: "NoSchedule".into() };
        for (text, expected) in [
            (r#"{"operator": "Exists"}"#, true),
            (r#"{"key": "edge", "operator": "Exists"}"#, true),
            (r#"{"key": "edge", "value": "yes", "effect": "NoSchedule"}"#, true),
            (r#"{"key": "edge", "value": "yes", "effect": "NoExecute"}"#, false),
            (r#"{"key": "edge"}"#, false),
            (r#"{"key": "other", "operator": "Exists"}"#, false),
            (r#"{"value": "yes"}"#, false),
        ] {
            let toleration: Toleration = serde_json::from_str(text).expect("a toleration");
            assert_eq!(toleration.tolerates(&taint), expected, "{text}");
        }
        let taint = Taint { effect: "NoExecute".into(), ..taint };
        let limited = r#"{"key": "edge", "operator": "Exists", "tolerationSeconds": 60}"#;
        let toleration: Toleration = serde_json::from_str(limited).expect("a toleration");
        assert!(!toleration.tolerates(&taint), "its pod is evicted after a minute");
    }
}
