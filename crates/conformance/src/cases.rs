//! Catalogue of cases. The letter of an id names the part of the API, and each part has a file.
//!
//! Sources that begin with `cm/` or `pluginmanager/` are files below `pkg/kubelet` of Kubernetes 1.36.

mod again;
mod allocate;
mod cdi;
mod dra;
mod fault;
mod grant;
mod life;
mod list;
mod pods;
mod preferred;
mod registration;
mod wire;

use crate::case::Case;

/// All cases, grouped by part of the API.
pub fn catalogue() -> Vec<Case> {
    [
        registration::CASES,
        again::CASES,
        list::CASES,
        fault::CASES,
        allocate::CASES,
        grant::CASES,
        preferred::CASES,
        pods::CASES,
        wire::CASES,
        life::CASES,
        dra::registration::CASES,
        dra::slices::CASES,
        dra::prepare::CASES,
        dra::refuse::CASES,
        dra::unprepare::CASES,
        dra::health::CASES,
        dra::life::CASES,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_case_has_a_unique_id_a_sentence_and_a_source() {
        let mut ids = BTreeSet::new();
        for Case { id, sentence, source, .. } in catalogue() {
            assert!(ids.insert(id), "{id} occurs twice");
            assert!(sentence.len() > 10 && !sentence.ends_with('.'), "{id}: {sentence}");
            assert!(source.len() > 10, "{id}: {source}");
        }
    }
}
