//! View: all nodes of a cluster, with a version for each.

use crate::{
    gpu::ModelId,
    node::{Conflict, Node, Part},
    request::{Gpus, ProfileId, Request, share_of},
};

/// The nodes of a cluster. Their order decides between equal ranks, so it must be deterministic.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    catalog: Catalog,
    nodes: Vec<Node>,
    versions: Vec<u64>,
    changes: u64,
    gpu_memory: MeanMemory,
}

/// Sum and count for the mean memory of the GPUs whose memory is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MeanMemory {
    sum_mib: u64,
    gpus: u64,
}

/// Position of a node in a [`ClusterView`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u32);

/// The node, and the part of its GPUs, that serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The node.
    pub node: NodeIndex,
    /// The part of its GPUs.
    pub part: Part,
}

/// Names of products and MIG profiles, numbered by [`ModelId`] and [`ProfileId`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    models: Vec<Model>,
    profiles: Vec<String>,
}

/// A product.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// Name of the product.
    pub name: String,
    /// Possible places of a MIG instance by profile, each as a bit mask of memory slices. A profile without places is
    /// not offered.
    pub places: Vec<(ProfileId, Vec<u8>)>,
}

/// The catalog is full: it has no number for another product or profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is one product or MIG profile too many; a view has at most 64 of each")]
pub struct CatalogFull {
    /// The name for which there is no number.
    pub name: String,
}

impl Catalog {
    /// The number of a product by its name. A new product gets the next number.
    pub fn intern_model(&mut self, name: &str) -> Result<ModelId, CatalogFull> {
        let existing = self.models.iter().position(|model| model.name == name);
        let position = existing.unwrap_or(self.models.len());
        let id = number(position, name)?;
        if existing.is_none() {
            self.models.push(Model { name: name.to_owned(), places: Vec::new() });
        }
        Ok(ModelId(id))
    }

    /// The number of a MIG profile by its name. A new profile gets the next number.
    pub fn intern_profile(&mut self, name: &str) -> Result<ProfileId, CatalogFull> {
        let existing = self.profiles.iter().position(|profile| profile == name);
        let position = existing.unwrap_or(self.profiles.len());
        let id = number(position, name)?;
        if existing.is_none() {
            self.profiles.push(name.to_owned());
        }
        Ok(ProfileId(id))
    }

    /// Sets the possible places of a profile on a product, as bit masks of memory slices. Empty masks are ignored.
    pub fn set_places(&mut self, model: ModelId, profile: ProfileId, mut places: Vec<u8>) {
        places.retain(|place| *place != 0);
        let by_profile = &mut self.models[usize::from(model.0)].places;
        by_profile.retain(|(other, _)| *other != profile);
        by_profile.push((profile, places));
    }

    /// Possible places of the profile on the product, as bit masks of memory slices.
    pub fn places(&self, model: ModelId, profile: ProfileId) -> &[u8] {
        let by_profile = self.models.get(usize::from(model.0)).map_or(&[][..], |it| &it.places);
        by_profile.iter().find(|(other, _)| *other == profile).map_or(&[], |(_, places)| places)
    }

    /// Number of memory slices of an instance of the profile, on the first product that offers it; else zero.
    fn slice_count(&self, profile: ProfileId) -> u32 {
        let places = self.models.iter().flat_map(|model| &model.places);
        let mut profile_places =
            places.filter(|(id, _)| *id == profile).flat_map(|(_, places)| places);
        profile_places.next().map_or(0, |place| place.count_ones())
    }

    /// The products and their names.
    pub fn models(&self) -> impl Iterator<Item = (ModelId, &str)> {
        (0..).map(ModelId).zip(self.models.iter().map(|model| model.name.as_str()))
    }

    /// The number of a product, if the catalog has it.
    pub fn find_model(&self, name: &str) -> Option<ModelId> {
        let position = self.models.iter().position(|model| model.name == name)?;
        u8::try_from(position).ok().map(ModelId)
    }
}

fn number(position: usize, name: &str) -> Result<u8, CatalogFull> {
    match u8::try_from(position) {
        Ok(id @ 0..64) => Ok(id),
        _ => Err(CatalogFull { name: name.to_owned() }),
    }
}

impl ClusterView {
    /// A view of these nodes. Only the first 64 GPUs of a node are used.
    pub fn new(catalog: Catalog, nodes: Vec<Node>) -> Self {
        let mut view = Self { catalog, ..Self::default() };
        for node in nodes {
            view.add(node);
        }
        view
    }

    /// Adds a node at the end of the order. Only the first 64 GPUs of the node are used.
    pub fn add(&mut self, mut node: Node) -> NodeIndex {
        node.gpus.truncate(64);
        self.gpu_memory.add(&node);
        self.nodes.push(node);
        self.versions.push(0);
        let index = NodeIndex(u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 nodes"));
        self.record_change(index);
        index
    }

    /// Replaces a node's state. A deleted node is replaced by an empty one, which fits no pod.
    pub fn replace(&mut self, node: NodeIndex, mut state: Node) {
        state.gpus.truncate(64);
        let position = node.0 as usize;
        self.gpu_memory.remove(&self.nodes[position]);
        self.gpu_memory.add(&state);
        self.nodes[position] = state;
        self.record_change(node);
    }

    /// The products and profiles.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The products and profiles, for additions.
    pub fn catalog_mut(&mut self) -> &mut Catalog {
        &mut self.catalog
    }

    /// Every node.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One node.
    pub fn node(&self, node: NodeIndex) -> &Node {
        &self.nodes[node.0 as usize]
    }

    /// By node: number of the view's change that set the node's state. A result about a node can be cached until this
    /// number changes.
    pub fn versions(&self) -> &[u64] {
        &self.versions
    }

    /// Number of changes so far: the largest version.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    fn record_change(&mut self, node: NodeIndex) {
        self.changes += 1;
        self.versions[node.0 as usize] = self.changes;
    }

    /// GPUs of a request in thousandths of an average GPU of this cluster: a share of memory counts relative to the
    /// mean memory, a MIG instance by its memory slices.
    pub fn average_milli(&self, request: &Request) -> u32 {
        match request.gpus {
            Gpus::None | Gpus::Whole(_) => request.gpu_milli(),
            Gpus::Share { count, compute_milli, memory } => {
                let share_milli = share_of(self.gpu_memory.mean_mib(), compute_milli, memory);
                u32::from(count) * u32::from(share_milli)
            }
            Gpus::Partition(profile) => self.catalog.slice_count(profile) * 1000 / u8::BITS,
        }
    }

    /// Allocates a part of a node to a request.
    ///
    /// # Errors
    ///
    /// A GPU of the part has too little free. The view is unchanged.
    pub fn allocate(&mut self, request: &Request, placement: Placement) -> Result<(), Conflict> {
        self.nodes[placement.node.0 as usize].allocate(request, placement.part)?;
        self.record_change(placement.node);
        Ok(())
    }

    /// Releases the part of a pod that has ended.
    pub fn release(&mut self, request: &Request, placement: Placement) {
        self.nodes[placement.node.0 as usize].release(request, placement.part);
        self.record_change(placement.node);
    }
}

impl MeanMemory {
    fn add(&mut self, node: &Node) {
        for mib in known_memories(node) {
            self.sum_mib += mib;
            self.gpus += 1;
        }
    }

    fn remove(&mut self, node: &Node) {
        for mib in known_memories(node) {
            self.sum_mib -= mib;
            self.gpus -= 1;
        }
    }

    fn mean_mib(self) -> u32 {
        u32::try_from(self.sum_mib / u64::max(self.gpus, 1)).unwrap_or(u32::MAX)
    }
}

fn known_memories(node: &Node) -> impl Iterator<Item = u64> + '_ {
    node.gpus.iter().map(|gpu| u64::from(gpu.memory_mib)).filter(|mib| *mib > 0)
}
