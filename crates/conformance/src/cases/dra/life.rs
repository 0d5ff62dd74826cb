//! D33 to D37: a driver's end, its load, and its work without the API server.

use std::time::{Duration, Instant};

use k8s_openapi::api::resource::v1::ResourceClaim;
use tokio::{task::JoinSet, time::sleep};
use windlass_cluster_sim::api::{Effect, Fault};

use super::{claimed, published, same};
use crate::{
    case::{Case, Checked, Unmet, failed},
    cases::life::{SPARE_DESCRIPTORS, end},
    stage::{CALL, Driver, Stage, devices},
};

/// Number of claims in one burst.
const BURST: usize = 50;

/// Delay of a slow API server.
const SLOW: Duration = Duration::from_secs(2);

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "D33",
        sentence: "ends within ten seconds after SIGTERM, without its registration socket",
        source: "kubeletplugin/draplugin.go, Stop: the kubelet would dial it for 10 s, again and again",
        check: |stage| Box::pin(ends_without_its_socket(stage)),
    },
    Case {
        id: "D34",
        sentence: "leaves what is prepared as it is when it ends: containers use it",
        source: "kubeletplugin: a driver is upgraded while pods run",
        check: |stage| Box::pin(leaves_what_is_prepared(stage)),
    },
    Case {
        id: "D35",
        sentence: "prepares and releases 50 claims at once, and keeps no descriptor for them",
        source: "cm/dra/manager.go: one call for each pod, of pods that start together; getrlimit(2)",
        check: |stage| Box::pin(takes_a_burst(stage)),
    },
    Case {
        id: "D36",
        sentence: "prepares a claim while the API server takes two seconds for each answer",
        source: "cm/dra/plugin/dra_plugin.go: the kubelet waits 45 s",
        check: |stage| Box::pin(waits_for_a_slow_server(stage)),
    },
    Case {
        id: "D37",
        sentence: "answers in time while the API server is away, lives, and prepares when it is back",
        source: "cm/dra/plugin/dra_plugin.go: 45 s; the pod is tried again",
        check: |stage| Box::pin(outlives_the_server(stage)),
    },
];

async fn ends_without_its_socket(stage: &mut Stage) -> Checked {
    // The kubelet may register a driver before its signal handlers are installed. Kubernetes' helper registers within
    // `Start`, and the program installs them after that. A driver that has published its devices is ready.
    published(stage).await?;
    let begun = Instant::now();
    end(stage).await?;
    match stage.registry().first() {
        Some(socket) => failed(format!("{} is still there", socket.display())),
        None => Ok(format!("no socket in plugins_registry after {:.1?}", begun.elapsed())),
    }
}

async fn leaves_what_is_prepared(stage: &mut Stage) -> Checked {
    let (driver, claim) = claimed(stage).await?;
    let before = driver.prepared(&claim).await?;
    let documents = crate::cases::cdi::known(&stage.cdi_dirs());
    end(stage).await?;
    let after = crate::cases::cdi::known(&stage.cdi_dirs());
    let names = before.iter().flat_map(|device| &device.cdi_device_ids);
    if let Some(name) = names.into_iter().find(|it| documents.contains(*it) && !after.contains(*it))
    {
        return failed(format!("{name} is in no document any more"));
    }
    let driver = stage.started_again().await?;
    same(&before, &driver.prepared(&claim).await?)
}

async fn takes_a_burst(stage: &mut Stage) -> Checked {
    let driver = stage.driver().await?;
    let claims = stage.claims(&driver, BURST).await?;
    // Descriptors of the first round may stay open: connections to the API server.
    come_and_go(&driver, &claims).await?;
    let (begun, first) = (Instant::now(), stage.process().usage().descriptors);
    for _ in 0..BURST.div_ceil(claims.len()) {
        come_and_go(&driver, &claims).await?;
    }
    let last = stage.process().usage().descriptors;
    let evidence = format!(
        "{} at once, in all {BURST} in {:.1?}; {first} descriptors before, {last} after",
        claims.len(),
        begun.elapsed()
    );
    if last > first + SPARE_DESCRIPTORS { failed(evidence) } else { Ok(evidence) }
}

/// Prepares claims in parallel, with a call each, and releases them together.
async fn come_and_go(driver: &Driver, claims: &[ResourceClaim]) -> Result<(), Unmet> {
    each_alone(driver, claims).await?;
    driver.release(&claims.iter().collect::<Vec<_>>()).await
}

/// Prepares claims in parallel, with a call each.
async fn each_alone(driver: &Driver, claims: &[ResourceClaim]) -> Result<(), Unmet> {
    let mut calls = JoinSet::new();
    for claim in claims {
        let (driver, claim) = (driver.clone(), claim.clone());
        calls.spawn(async move { driver.prepared(&claim).await });
    }
    while let Some(answered) = calls.join_next().await {
        answered.map_err(|error| Unmet::Failed(format!("no stage: {error}")))??;
    }
    Ok(())
}

async fn waits_for_a_slow_server(stage: &mut Stage) -> Checked {
    let (driver, claim) = claimed(stage).await?;
    stage.cluster.server().inject(Fault::at("/", Effect::Delay(SLOW)));
    let begun = Instant::now();
    driver.prepared(&claim).await?;
    Ok(format!("prepared after {:.1?}", begun.elapsed()))
}

async fn outlives_the_server(stage: &mut Stage) -> Checked {
    let (driver, claim) = claimed(stage).await?;
    stage.cluster.server_mut().go_away().await;
    let begun = Instant::now();
    // A driver that already knew the claim may prepare it.
    let told = match driver.asked(&[&claim]).await? {
        Ok(answer) => devices(&answer, &claim).map(drop),
        Err(status) => failed(status.message()),
    };
    let waited = begun.elapsed();
    stage.alive()?;
    stage.cluster.server_mut().come_back();
    let (begun, limit) = (Instant::now(), stage.subject.within.recover);
    while let Err(why) = driver.prepared(&claim).await {
        stage.alive()?;
        if begun.elapsed() > limit {
            return Err(why);
        }
        sleep(Duration::from_millis(100)).await;
    }
    let told = told.map_or_else(|why| format!("{why:?}"), |()| "prepared".to_owned());
    Ok(format!("{told} after {waited:.1?}, of {CALL:?}; prepared when it was back"))
}
