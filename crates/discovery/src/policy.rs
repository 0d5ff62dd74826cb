//! Watch of the parts of the policy that the source of a driver follows.

use std::sync::Arc;

use tokio::sync::watch;
use windlass_config::{DraMigMode, HealthPolicy, Policy};
use windlass_host::watch::until;

/// Parts of the policy that the source of a driver follows.
#[derive(Clone, PartialEq)]
pub(super) struct DriverPolicy {
    pub(super) health: HealthPolicy,
    /// True if MIG is turned on for claims: a GPU with MIG off has possible partitions too. Their read takes an H100's
    /// driver 9 ms.
    pub(super) switches_mig: bool,
}

/// Policy of the source of a driver. Changes to other parts of the policy do not wake the source.
pub(super) struct DriverPolicyWatch {
    policies: watch::Receiver<Arc<Policy>>,
    current: DriverPolicy,
}

// === impl DriverPolicy ===

impl DriverPolicy {
    pub(super) fn new(policy: &Policy) -> Self {
        let switches_mig = policy.dra.mig_mode == DraMigMode::OnDemand;
        Self { health: policy.health.clone(), switches_mig }
    }
}

// === impl DriverPolicyWatch ===

impl DriverPolicyWatch {
    pub(super) fn new(mut policies: watch::Receiver<Arc<Policy>>) -> Self {
        let current = DriverPolicy::new(&policies.borrow_and_update());
        Self { policies, current }
    }

    pub(super) fn current(&self) -> &DriverPolicy {
        &self.current
    }

    /// Waits for a changed policy and makes it the current one. Waits forever once the sender is dropped.
    pub(super) async fn changed(&mut self) {
        until(&mut self.policies, |policy| DriverPolicy::new(policy) != self.current).await;
        self.current = DriverPolicy::new(&self.policies.borrow());
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use tokio::time::timeout;
    use windlass_config::MigStrategy;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_changed_part_ends_the_wait() {
        let (sender, policies) = watch::channel(Arc::new(Policy::default()));
        let mut watch = DriverPolicyWatch::new(policies);
        sender.send_modify(|policy| Arc::make_mut(policy).mig = MigStrategy::Single);
        let minute = Duration::from_secs(60);
        timeout(minute, watch.changed()).await.expect_err("other parts do not wake the source");
        sender.send_modify(|policy| Arc::make_mut(policy).health.ignored_xids = [79].into());
        timeout(minute, watch.changed()).await.expect("changed");
        assert_eq!(watch.current().health.ignored_xids, BTreeSet::from([79]));
        sender.send_modify(|policy| Arc::make_mut(policy).dra.mig_mode = DraMigMode::OnDemand);
        timeout(minute, watch.changed()).await.expect("changed");
        assert!(watch.current().switches_mig);
        drop(sender);
        timeout(minute, watch.changed()).await.expect_err("the last policy stays");
    }
}
