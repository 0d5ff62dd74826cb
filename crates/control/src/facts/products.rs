//! The GPU products that a pod accepts.

use std::collections::BTreeMap;

use windlass_sched::{gpu::ModelSet, view::Catalog};

/// HAMi's annotation: parts of product names, separated by commas, one of which has to be in the name.
const USE: &str = "nvidia.com/use-gputype";
/// HAMi's annotation: parts of product names, separated by commas, none of which may be in the name.
const NO_USE: &str = "nvidia.com/nouse-gputype";

/// A pod's choice of GPU products. The default accepts all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Products {
    wanted: Vec<String>,
    refused: Vec<String>,
}

// === impl Products ===

impl Products {
    /// Reads a pod's annotations.
    pub(super) fn of(annotations: &BTreeMap<String, String>) -> Self {
        let parts = |key| annotations.get(key).map(|text| parts(text)).unwrap_or_default();
        Self { wanted: parts(USE), refused: parts(NO_USE) }
    }

    /// The accepted products of a catalogue.
    pub fn within(&self, catalog: &Catalog) -> ModelSet {
        if *self == Self::default() {
            return ModelSet::ANY;
        }
        let models = catalog.models().filter(|(_, name)| self.accepts(name));
        models.fold(ModelSet::NONE, |set, (model, _)| set.with(model))
    }

    fn accepts(&self, product: &str) -> bool {
        let product = product.to_lowercase();
        let is_in = |part: &String| product.contains(part.as_str());
        (self.wanted.is_empty() || self.wanted.iter().any(is_in)) && !self.refused.iter().any(is_in)
    }
}

fn parts(text: &str) -> Vec<String> {
    let parts = text.split(',').map(|part| part.trim().to_lowercase());
    parts.filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_chosen_by_parts_of_their_names() {
        let mut catalog = Catalog::default();
        let [a10, h100] =
            ["NVIDIA A10", "NVIDIA H100 80GB HBM3"].map(|name| catalog.model(name).expect("room"));
        let accepted = |key: &str, value: &str| {
            let annotations = [(key.to_owned(), value.to_owned())].into();
            let set = Products::of(&annotations).within(&catalog);
            (set.has(a10), set.has(h100))
        };
        assert_eq!(accepted(USE, "a10, V100"), (true, false));
        assert_eq!(accepted(NO_USE, "A10"), (false, true));
        assert_eq!(accepted(USE, " , "), (true, true));
        assert_eq!(accepted("other", "A10"), (true, true));
    }
}
