//! Scarcity of products: a pod that any GPU can serve should leave scarce products to pods that require them.

use crate::{
    forecast::RequestCount,
    gpu::{ModelId, ModelSet},
    view::ClusterView,
};

/// By product: the demand of pods that accept only some products, relative to the number of its GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scarcity {
    by_model: Vec<f64>,
}

impl Scarcity {
    /// Scales the counted demand so that it fills the cluster's capacity. The demand of a request that accepts several
    /// products is divided among these in proportion to their numbers of GPUs.
    pub fn of(counts: &[RequestCount], view: &ClusterView) -> Self {
        let mut gpus = [0.0; 64];
        for gpu in view.nodes().iter().flat_map(|node| &node.gpus) {
            gpus[usize::from(gpu.model.0)] += 1.0;
        }
        let number_of = |set: ModelSet| -> f64 {
            (0..64).filter(|id| set.contains(ModelId(*id))).map(|id| gpus[usize::from(id)]).sum()
        };
        let gpu_total = number_of(ModelSet::ANY);
        let total: f64 = counts.iter().map(RequestCount::demand_milli).sum();
        let mut by_model = vec![0.0; 64];
        for count in counts.iter().filter(|count| count.demand_milli() > 0.0) {
            let eligible = number_of(count.request.models);
            if eligible == 0.0 || eligible >= gpu_total {
                continue;
            }
            let demand = count.demand_milli() / total * gpu_total;
            for (id, scarcity) in (0..).zip(&mut by_model) {
                if count.request.models.contains(ModelId(id)) {
                    *scarcity += demand / eligible;
                }
            }
        }
        Self { by_model }
    }

    /// The demand for a product relative to the number of its GPUs, at most 1.
    pub fn of_model(&self, model: ModelId) -> f64 {
        self.by_model.get(usize::from(model.0)).map_or(0.0, |scarcity| scarcity.min(1.0))
    }
}
