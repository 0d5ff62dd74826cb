//! D33 to D37: a driver's exit, its load, and its work without the API server.

use std::time::{Duration, Instant};

use k8s_openapi::api::resource::v1::ResourceClaim;
use tokio::{task::JoinSet, time::sleep};
use windlass_cluster_sim::api::{Effect, Fault};

use super::{check_unchanged, driver_with_claim, driver_with_slices};
use crate::{
    case::{Case, CheckError, CheckResult, failed},
    cases::life::{MAX_DESCRIPTOR_GROWTH, terminate},
    testbed::{CALL_LIMIT, Driver, Testbed, prepared_devices},
};

/// Number of claims in one burst.
const BURST_CLAIMS: usize = 50;

/// Delay of a slow API server.
const API_SERVER_DELAY: Duration = Duration::from_secs(2);

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "D33",
        sentence: "exits within ten seconds after SIGTERM, and removes its registration socket",
        source: "kubeletplugin/draplugin.go, Stop: the kubelet would dial it for 10 s, repeatedly",
        check: |testbed| Box::pin(ends_without_its_socket(testbed)),
    },
    Case {
        id: "D34",
        sentence: "leaves prepared devices unchanged when it exits: containers use them",
        source: "kubeletplugin: a driver is upgraded while pods run",
        check: |testbed| Box::pin(leaves_prepared_devices(testbed)),
    },
    Case {
        id: "D35",
        sentence: "prepares and releases 50 claims in parallel, without leaking descriptors",
        source: "cm/dra/manager.go: one call for each pod, in parallel; getrlimit(2)",
        check: |testbed| Box::pin(handles_a_burst(testbed)),
    },
    Case {
        id: "D36",
        sentence: "prepares a claim while the API server delays each answer by two seconds",
        source: "cm/dra/plugin/dra_plugin.go: the kubelet waits 45 s",
        check: |testbed| Box::pin(tolerates_a_slow_api_server(testbed)),
    },
    Case {
        id: "D37",
        sentence: "answers in time while the API server is down, stays alive, and prepares after its return",
        source: "cm/dra/plugin/dra_plugin.go: 45 s; the kubelet retries the pod",
        check: |testbed| Box::pin(survives_an_api_server_outage(testbed)),
    },
];

async fn ends_without_its_socket(testbed: &mut Testbed) -> CheckResult {
    // The kubelet may register a driver before its signal handlers are installed. Kubernetes' helper registers within
    // `Start`, and the program installs them after that. A driver that has published its devices is ready.
    driver_with_slices(testbed).await?;
    let started_at = Instant::now();
    terminate(testbed).await?;
    match testbed.registration_sockets().first() {
        Some(socket) => failed(format!("{} still exists", socket.display())),
        None => Ok(format!("no socket in plugins_registry after {:.1?}", started_at.elapsed())),
    }
}

async fn leaves_prepared_devices(testbed: &mut Testbed) -> CheckResult {
    let (driver, claim) = driver_with_claim(testbed).await?;
    let before = driver.prepare_one(&claim).await?;
    let names_before = crate::cases::cdi::device_names(&testbed.cdi_dirs());
    terminate(testbed).await?;
    let names_after = crate::cases::cdi::device_names(&testbed.cdi_dirs());
    let mut names = before.iter().flat_map(|device| &device.cdi_device_ids);
    if let Some(name) =
        names.find(|name| names_before.contains(*name) && !names_after.contains(*name))
    {
        return failed(format!("{name} is no longer in a CDI spec"));
    }
    let driver = testbed.restart_driver().await?;
    check_unchanged(&before, &driver.prepare_one(&claim).await?)
}

async fn handles_a_burst(testbed: &mut Testbed) -> CheckResult {
    let driver = testbed.start_driver().await?;
    let claims = testbed.create_claims(&driver, BURST_CLAIMS).await?;
    // Descriptors of the first round may stay open, such as connections to the API server.
    prepare_and_release(&driver, &claims).await?;
    let (started_at, descriptors_before) = (Instant::now(), testbed.process().usage().descriptors);
    for _ in 0..BURST_CLAIMS.div_ceil(claims.len()) {
        prepare_and_release(&driver, &claims).await?;
    }
    let descriptors_after = testbed.process().usage().descriptors;
    let evidence = format!(
        "{} in parallel, {BURST_CLAIMS} in total in {:.1?}; {descriptors_before} descriptors \
         before, {descriptors_after} after",
        claims.len(),
        started_at.elapsed()
    );
    if descriptors_after > descriptors_before + MAX_DESCRIPTOR_GROWTH {
        failed(evidence)
    } else {
        Ok(evidence)
    }
}

/// Prepares claims in parallel, with a call each, and releases them in one call.
async fn prepare_and_release(driver: &Driver, claims: &[ResourceClaim]) -> Result<(), CheckError> {
    prepare_in_parallel(driver, claims).await?;
    driver.release(&claims.iter().collect::<Vec<_>>()).await
}

/// Prepares claims in parallel, with a call each.
async fn prepare_in_parallel(driver: &Driver, claims: &[ResourceClaim]) -> Result<(), CheckError> {
    let mut calls = JoinSet::new();
    for claim in claims {
        let (driver, claim) = (driver.clone(), claim.clone());
        calls.spawn(async move { driver.prepare_one(&claim).await });
    }
    while let Some(result) = calls.join_next().await {
        result
            .map_err(|error| CheckError::Failed(format!("cannot set up the test: {error}")))??;
    }
    Ok(())
}

async fn tolerates_a_slow_api_server(testbed: &mut Testbed) -> CheckResult {
    let (driver, claim) = driver_with_claim(testbed).await?;
    testbed.cluster.server().inject(Fault::at("/", Effect::Delay(API_SERVER_DELAY)));
    let started_at = Instant::now();
    driver.prepare_one(&claim).await?;
    Ok(format!("prepared after {:.1?}", started_at.elapsed()))
}

async fn survives_an_api_server_outage(testbed: &mut Testbed) -> CheckResult {
    let (driver, claim) = driver_with_claim(testbed).await?;
    testbed.cluster.server_mut().go_offline().await;
    let started_at = Instant::now();
    // A driver that has the claim in its cache may prepare it.
    let response = match driver.call_prepare(&[&claim]).await? {
        Ok(results) => prepared_devices(&results, &claim).map(drop),
        Err(status) => failed(status.message()),
    };
    let elapsed = started_at.elapsed();
    testbed.check_alive()?;
    testbed.cluster.server_mut().go_online();
    let (started_at, limit) = (Instant::now(), testbed.subject.limits.recover);
    while let Err(error) = driver.prepare_one(&claim).await {
        testbed.check_alive()?;
        if started_at.elapsed() > limit {
            return Err(error);
        }
        sleep(Duration::from_millis(100)).await;
    }
    let response = response.map_or_else(|error| format!("{error:?}"), |()| "prepared".to_owned());
    Ok(format!(
        "{response} after {elapsed:.1?} of {CALL_LIMIT:?}; prepared after the server's return"
    ))
}
