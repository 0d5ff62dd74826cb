//! Watch of the health policy, which is one part of the policy.

use std::sync::Arc;

use tokio::sync::watch;
use windlass_config::{HealthPolicy, Policy};

/// Health policy of a source. Changes to other parts of the policy do not wake the source.
pub(super) struct HealthPolicyWatch {
    policies: watch::Receiver<Arc<Policy>>,
    current: HealthPolicy,
}

// === impl HealthPolicyWatch ===

impl HealthPolicyWatch {
    pub(super) fn new(mut policies: watch::Receiver<Arc<Policy>>) -> Self {
        let current = policies.borrow_and_update().health.clone();
        Self { policies, current }
    }

    pub(super) fn current(&self) -> &HealthPolicy {
        &self.current
    }

    /// Waits for a changed health policy and makes it the current one. Waits forever once the sender is dropped.
    pub(super) async fn changed(&mut self) {
        let changed_policy = self.policies.wait_for(|policy| policy.health != self.current).await;
        match changed_policy.map(|policy| policy.health.clone()) {
            Ok(policy) => self.current = policy,
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use tokio::time::timeout;
    use windlass_config::MigStrategy;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_changed_health_policy_ends_the_wait() {
        let (sender, policies) = watch::channel(Arc::new(Policy::default()));
        let mut watch = HealthPolicyWatch::new(policies);
        sender.send_modify(|policy| Arc::make_mut(policy).mig = MigStrategy::Single);
        let minute = Duration::from_secs(60);
        timeout(minute, watch.changed()).await.expect_err("other parts do not wake the source");
        sender.send_modify(|policy| Arc::make_mut(policy).health.ignored_xids = [79].into());
        timeout(minute, watch.changed()).await.expect("changed");
        assert_eq!(watch.current().ignored_xids, BTreeSet::from([79]));
        drop(sender);
        timeout(minute, watch.changed()).await.expect_err("the last policy stays");
    }
}
