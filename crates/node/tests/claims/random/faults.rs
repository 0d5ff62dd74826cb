//! Faults of the node beside its pods.

use std::{fs, time::Duration};

use tokio::time::timeout;
use windlass_testkit::{GPU, until_exists};

use super::{Run, pods::start_claim};
use crate::{
    claims::world::{Mounts, NODE, remove_if_exists},
    dra::records,
};

/// Longest wait of a caller that cancels its call, in milliseconds.
const LONGEST_MS: usize = 50;

/// The driver's sockets, in the kubelet's folder.
const SOCKETS: [&str; 2] =
    ["plugins/windlass.dev/dra.sock", "plugins_registry/windlass.dev@reg.sock"];

impl Run {
    /// Causes a random fault.
    pub(super) async fn cause_fault(&mut self) {
        match self.rng.below(12) {
            0 | 1 => self.restart_kubelet().await,
            2 | 3 => self.kill_agent().await,
            4 => self.kill_during_prepare().await,
            5 => self.delete_record().await,
            6 => self.delete_plugin_sockets(),
            7 => self.delete_driver_sockets().await,
            8 => self.delete_documents(),
            9 => self.delete_slices(),
            10 => self.stop_api_server().await,
            _ => self.world.kubelet.close_plugin_connection(GPU).await,
        }
    }

    /// Cancels the kubelet's call for a claim.
    pub(super) async fn cancel_prepare(&mut self) {
        let Some(scheduled) = self.schedule() else { return };
        let timeout_after = Duration::from_millis(self.rng.below(LONGEST_MS) as u64);
        let started = timeout(timeout_after, start_claim(&self.world, &scheduled)).await;
        self.tally.cancelled += usize::from(started.is_err());
        self.record_claim_pod(
            scheduled,
            &started.unwrap_or_else(|elapsed| Err(elapsed.to_string())),
        );
    }

    async fn restart_kubelet(&mut self) {
        self.log("kubelet restarts".to_owned());
        self.tally.kubelet_restarts += 1;
        self.world.kubelet.restart().await.expect("it restarts");
        self.world.check();
        self.world.until_registered().await;
    }

    pub(super) async fn kill_agent(&mut self) {
        self.log("agent is killed".to_owned());
        self.tally.agent_kills += 1;
        self.world.kill_agent().await;
        self.world.check();
        self.world.start_agent();
        self.world.until_registered().await;
    }

    /// Kills the agent while it prepares a claim.
    async fn kill_during_prepare(&mut self) {
        self.cancel_prepare().await;
        self.tally.killed_during_prepare += 1;
        self.kill_agent().await;
    }

    /// Restarts the agent without its state file of claims. Sometimes the copy is lost too, but only if the agent sees
    /// the kubelet's checkpoint: otherwise nothing would show the claims.
    async fn delete_record(&mut self) {
        let [record, copy] = records(&self.world.config.places);
        if self.mounts == Mounts::Shipped && !copy.exists() {
            return;
        }
        self.log("agent is killed, and its state file is deleted".to_owned());
        self.tally.lost_records += 1;
        self.world.kill_agent().await;
        let had_claims = !self.world.record().is_empty();
        remove_if_exists(&record);
        if self.mounts == Mounts::Whole && self.rng.below(2) == 0 {
            remove_if_exists(&copy);
        }
        self.world.start_agent();
        self.world.until_registered().await;
        if had_claims {
            until_exists(&record).await;
        }
    }

    fn delete_plugin_sockets(&mut self) {
        self.log("the device plugin's sockets are deleted".to_owned());
        self.tally.deletions += 1;
        let folder = self.world.config.places.kubelet_dir.join("device-plugins");
        for entry in fs::read_dir(folder).expect("there").flatten() {
            if entry.file_name().to_string_lossy().starts_with("windlass-") {
                remove_if_exists(&entry.path());
            }
        }
    }

    async fn delete_driver_sockets(&mut self) {
        self.log("the driver's sockets are deleted".to_owned());
        self.tally.deletions += 1;
        for socket in SOCKETS {
            remove_if_exists(&self.world.config.places.kubelet_dir.join(socket));
        }
        self.world.until_registered().await;
    }

    fn delete_documents(&mut self) {
        self.log("CDI documents are deleted".to_owned());
        self.tally.deletions += 1;
        for entry in fs::read_dir(&self.world.config.places.cdi_dir).expect("there").flatten() {
            remove_if_exists(&entry.path());
        }
    }

    fn delete_slices(&mut self) {
        self.log("slices are deleted".to_owned());
        self.tally.deletions += 1;
        self.world.objects().delete_all_slices(NODE);
    }

    async fn stop_api_server(&mut self) {
        self.log("API server is stopped".to_owned());
        self.tally.api_outages += 1;
        self.world.cluster.server_mut().go_offline().await;
        self.start_both_at_once().await;
        self.world.check();
        self.world.cluster.server_mut().go_online();
    }
}
