//! Plan of the requests that make a pool's published slices equal the desired ones: a pure function.
//!
//! A slice's name begins with its index in the pool. The scheduler sorts slices by name, and therefore tries devices in
//! the desired order. The scheduler uses a pool only if the number of slices of the newest generation equals their
//! `resourceSliceCount`. A change of one slice therefore keeps the generation. Changes of several slices start a new
//! generation, and all slices are written with it.

use k8s_openapi::{
    api::resource::v1::{ResourcePool, ResourceSlice, ResourceSliceSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::SliceContent;

/// Driver and node that slices belong to.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub(super) driver: String,
    pub(super) node: String,
}

/// Requests for one pool, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PoolPlan {
    pub(super) delete: Vec<ResourceSlice>,
    /// Slices with their index in the pool.
    pub(super) update: Vec<(usize, ResourceSlice)>,
    pub(super) create: Vec<(usize, ResourceSlice)>,
}

/// A pool with its desired slices, in order.
#[derive(Clone, Copy)]
pub(super) struct DesiredPool<'a> {
    pub(super) name: &'a str,
    pub(super) slices: &'a [SliceContent],
}

/// Hexadecimal digits of the index in a slice's name. Their number is fixed, since names sort as text.
const INDEX_DIGITS: usize = 5;

// === impl PoolPlan ===

impl PoolPlan {
    /// Plan for a pool with these published slices. `is_up_to_date(index, slice)` is true if the content of the
    /// published slice needs no update.
    pub(super) fn new(
        owner: &Owner,
        desired: DesiredPool<'_>,
        published: &[&ResourceSlice],
        is_up_to_date: impl Fn(usize, &ResourceSlice) -> bool,
    ) -> Self {
        let newest = published.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or(0);
        let (by_index, delete) = classify(published, newest, desired.slices.len());
        let count = i64::try_from(desired.slices.len()).expect("far fewer slices");
        let pool = |generation| ResourcePool {
            name: desired.name.to_owned(),
            generation,
            resource_slice_count: count,
        };
        let is_current = |(index, slice): (usize, &ResourceSlice)| {
            slice.spec.pool == pool(newest) && is_up_to_date(index, slice)
        };
        let existing =
            || by_index.iter().enumerate().filter_map(|(index, slice)| Some((index, (*slice)?)));
        let outdated = existing().filter(|slice| !is_current(*slice)).count();
        let is_new_generation = outdated > 1 || by_index.contains(&None);
        let pool = pool(if is_new_generation { newest + 1 } else { newest });
        let update = existing().filter(|slice| is_new_generation || !is_current(*slice));
        let update =
            update.map(|(index, slice)| (index, updated(slice, &pool, &desired.slices[index])));
        let missing = (0..desired.slices.len()).filter(|index| by_index[*index].is_none());
        let create =
            missing.map(|index| (index, created(owner, &pool, index, &desired.slices[index])));
        Self { delete, update: update.collect(), create: create.collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.update.is_empty() && self.create.is_empty()
    }
}

/// Slices by index, and slices to delete.
fn classify<'a>(
    published: &[&'a ResourceSlice],
    newest: i64,
    count: usize,
) -> (Vec<Option<&'a ResourceSlice>>, Vec<ResourceSlice>) {
    let (mut by_index, mut obsolete) = (vec![None; count], Vec::new());
    for slice in published {
        let index = index_of(slice).filter(|_| slice.spec.pool.generation == newest);
        match index.and_then(|index| by_index.get_mut(index)) {
            Some(entry @ None) => *entry = Some(*slice),
            Some(Some(_)) | None => obsolete.push((*slice).clone()),
        }
    }
    (by_index, obsolete)
}

/// Index of a slice in its pool, from its name.
fn index_of(slice: &ResourceSlice) -> Option<usize> {
    let (index, _) = slice.metadata.name.as_deref()?.split_once('-')?;
    let is_index =
        index.len() == INDEX_DIGITS && index.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_index.then(|| usize::from_str_radix(index, 16).ok()).flatten()
}

fn updated(slice: &ResourceSlice, pool: &ResourcePool, content: &SliceContent) -> ResourceSlice {
    let mut slice = slice.clone();
    slice.spec.pool = pool.clone();
    content.apply_to(&mut slice.spec);
    slice
}

fn created(
    owner: &Owner,
    pool: &ResourcePool,
    index: usize,
    content: &SliceContent,
) -> ResourceSlice {
    let Owner { driver, node } = owner;
    let name = format!("{index:0INDEX_DIGITS$x}-{driver}-{node}-");
    let metadata = ObjectMeta { generate_name: Some(name), ..ObjectMeta::default() };
    let mut spec = ResourceSliceSpec {
        driver: driver.clone(),
        node_name: Some(node.clone()),
        pool: pool.clone(),
        ..ResourceSliceSpec::default()
    };
    content.apply_to(&mut spec);
    ResourceSlice { metadata, spec }
}

#[cfg(test)]
mod tests;
