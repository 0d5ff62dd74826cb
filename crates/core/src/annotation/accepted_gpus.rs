//! The GPUs that a pod accepts, by HAMi's annotations: product names and ids.

use std::collections::BTreeMap;

use crate::device::DeviceId;

/// Substrings of product names. An accepted product contains at least one.
const USE_PRODUCT: &str = "nvidia.com/use-gputype";
/// Substrings of product names. An accepted product contains none.
const NO_USE_PRODUCT: &str = "nvidia.com/nouse-gputype";
/// Ids of accepted GPUs.
const USE_ID: &str = "nvidia.com/use-gpuuuid";
/// Ids of refused GPUs.
const NO_USE_ID: &str = "nvidia.com/nouse-gpuuuid";

/// A pod's choice of GPUs. The default accepts all GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptedGpus {
    products: Filter,
    ids: Filter,
}

/// Lists of accepted and refused texts. An empty list `allowed` accepts all texts that are not refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Filter {
    allowed: Vec<String>,
    refused: Vec<String>,
}

// === impl AcceptedGpus ===

impl AcceptedGpus {
    /// Reads a pod's annotations.
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Self {
        let to_lowercase = |text: &str| text.to_lowercase();
        Self {
            products: Filter::of(annotations, [USE_PRODUCT, NO_USE_PRODUCT], to_lowercase),
            ids: Filter::of(annotations, [USE_ID, NO_USE_ID], str::to_owned),
        }
    }

    /// True if the annotations name no product.
    pub fn accepts_all_products(&self) -> bool {
        self.products == Filter::default()
    }

    /// True if the annotations name no id.
    pub fn accepts_all_ids(&self) -> bool {
        self.ids == Filter::default()
    }

    /// True for a product of this name.
    pub fn accepts_product(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.products.accepts(|part| name.contains(part))
    }

    /// True for the GPU of this id. A GPU without an id is accepted unless the annotations list accepted ids.
    pub fn accepts_id(&self, id: Option<&DeviceId>) -> bool {
        self.ids.accepts(|text| id.is_some_and(|id| id.as_str() == text))
    }
}

// === impl Filter ===

impl Filter {
    /// Reads two annotations with comma-separated texts, each normalised by `normalise`.
    fn of(
        annotations: &BTreeMap<String, String>,
        [allowed, refused]: [&str; 2],
        normalise: fn(&str) -> String,
    ) -> Self {
        let texts = |key| {
            let list = annotations.get(key).map(String::as_str).unwrap_or_default();
            let texts = list.split(',').map(|text| normalise(text.trim()));
            texts.filter(|text| !text.is_empty()).collect()
        };
        Self { allowed: texts(allowed), refused: texts(refused) }
    }

    fn accepts(&self, matches: impl Fn(&str) -> bool) -> bool {
        let matches_any = |texts: &[String]| texts.iter().any(|text| matches(text));
        (self.allowed.is_empty() || matches_any(&self.allowed)) && !matches_any(&self.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(key: &str, value: &str) -> AcceptedGpus {
        AcceptedGpus::from_annotations(&[(key.to_owned(), value.to_owned())].into())
    }

    #[test]
    fn products_are_chosen_by_parts_of_their_names() {
        let accepted_products = |key, value| {
            let accepted = accepted(key, value);
            ["NVIDIA A10", "NVIDIA H100 80GB HBM3"].map(|name| accepted.accepts_product(name))
        };
        assert_eq!(accepted_products(USE_PRODUCT, "a10, V100"), [true, false]);
        assert_eq!(accepted_products(NO_USE_PRODUCT, "A10"), [false, true]);
        assert_eq!(accepted_products(USE_PRODUCT, " , "), [true, true]);
        assert_eq!(accepted_products("other", "A10"), [true, true]);
    }

    #[test]
    fn gpus_are_chosen_by_their_whole_ids() {
        let id = |text: &str| Some(text.parse::<DeviceId>().expect("an id"));
        let accepted_ids = |key, value| {
            let accepted = accepted(key, value);
            [id("GPU-a"), id("GPU-ab"), None].map(|id| accepted.accepts_id(id.as_ref()))
        };
        assert_eq!(accepted_ids(USE_ID, "GPU-x, GPU-a"), [true, false, false]);
        assert_eq!(accepted_ids(NO_USE_ID, "GPU-a,"), [false, true, true]);
        assert_eq!(accepted_ids(USE_PRODUCT, "GPU-a"), [true, true, true]);
    }
}
