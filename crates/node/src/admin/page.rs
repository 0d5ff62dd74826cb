//! The page that a request gets.

use prometheus_client::registry::Registry;
use windlass_config::Disclosed;
use windlass_core::attribute::AttributeName;

use super::{
    Admin, Pages,
    http::{Page, Request, Status},
    probe::{self, Report, Waiting},
};
use crate::metrics::{self, Format};

/// A page that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topic {
    Index,
    Health,
    Readiness,
    Metrics,
    Devices,
}

const INDEX: &str = "\
windlass node

/healthz  whether the agent should go on, or be restarted
/readyz   whether every resource is registered with the kubelet
/metrics  OpenMetrics, or Prometheus' text format
/devices  the inventory as JSON
";

const JSON: &str = "application/json";

/// The page at a path.
pub(super) async fn answer(pages: &Pages, request: &Request) -> Page {
    let Some(topic) = Topic::at(&request.path) else {
        return Page::text(Status::NotFound, format!("no page {}\n\n{INDEX}", request.path));
    };
    if !["GET", "HEAD"].contains(&request.method.as_str()) {
        return Page::text(Status::MethodNotAllowed, "only GET and HEAD\n");
    }
    match pages {
        Pages::All(admin) => serving(admin, topic, request).await,
        Pages::StandingBy(waiting) => standing_by(waiting, topic, request),
    }
}

async fn serving(admin: &Admin, topic: Topic, request: &Request) -> Page {
    match topic {
        Topic::Index => Page::text(Status::Ok, INDEX),
        Topic::Health => report(&probe::health(&admin.state, &admin.rounds)),
        Topic::Readiness => {
            let (state, standings) =
                (admin.state.borrow().clone(), admin.standings.borrow().clone());
            report(&probe::readiness(&state, &standings))
        }
        Topic::Metrics => {
            admin.holders.refresh().await;
            exposition(&admin.registry, request)
        }
        Topic::Devices => devices(admin),
    }
}

/// An agent that stands by has no devices yet, and says so.
fn standing_by(waiting: &Waiting, topic: Topic, request: &Request) -> Page {
    match topic {
        Topic::Index => Page::text(Status::Ok, INDEX),
        Topic::Health => report(&waiting.health()),
        Topic::Readiness => report(&waiting.readiness()),
        Topic::Metrics => exposition(&metrics::standing_by(), request),
        Topic::Devices => Page::text(Status::Unavailable, waiting.to_string()),
    }
}

fn exposition(registry: &Registry, request: &Request) -> Page {
    let format = Format::accepted(&request.accept);
    match format.text(registry) {
        Ok(body) => Page { status: Status::Ok, content_type: format.content_type(), body },
        Err(error) => failed(&error),
    }
}

fn devices(admin: &Admin) -> Page {
    let mut inventory = admin.state.borrow().inventory.clone();
    if !admin.disclosed.contains(&Disclosed::Serials) {
        for device in &mut inventory.devices {
            device.attributes.retain(|name, _| !is_serial_number(name));
        }
    }
    match serde_json::to_string_pretty(&inventory) {
        Ok(body) => Page { status: Status::Ok, content_type: JSON, body: body + "\n" },
        Err(error) => failed(&error),
    }
}

/// `serial`, `serialNumber`, `usbSerial`: the configuration may name attributes as it likes.
fn is_serial_number(name: &AttributeName) -> bool {
    name.name().to_ascii_lowercase().contains("serial")
}

fn report(report: &Report) -> Page {
    let status = if report.is_good() { Status::Ok } else { Status::Unavailable };
    Page::text(status, report.to_string())
}

fn failed(error: &dyn std::error::Error) -> Page {
    Page::text(Status::Failed, format!("cannot write the page: {error}\n"))
}

// === impl Topic ===

impl Topic {
    fn at(path: &str) -> Option<Self> {
        Some(match path {
            "/" => Self::Index,
            "/healthz" => Self::Health,
            "/readyz" => Self::Readiness,
            "/metrics" => Self::Metrics,
            "/devices" => Self::Devices,
            _ => return None,
        })
    }
}
