//! Routes of the agent's HTTP server, and their responses.

use bytes::Bytes;
use prometheus_client::registry::Registry;
use windlass_config::Disclosed;
use windlass_core::attribute::AttributeName;
use windlass_page::{Asset, Revision};

use super::{
    Admin, Pages,
    http::{Request, Response, StatusCode},
    probe::{self, ProbeReport, Standby},
};
use crate::metrics::{self, Format};

/// Known paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Index,
    Health,
    Readiness,
    Metrics,
    Devices,
    /// A file of the page.
    File(&'static Asset),
    /// The state that the page shows.
    State,
    /// `/page` without the final slash: redirects to `/page/`, where the page's relative links work.
    PageRedirect,
}

const INDEX: &str = "\
windlass node

/healthz  liveness: 503 if the agent has to be restarted
/readyz   readiness: 503 until every resource is registered with the kubelet
/metrics  OpenMetrics, or Prometheus' text format
/devices  the inventory as JSON
/page/    devices, links and holders as a picture
";

const JSON: &str = "application/json";

pub(super) async fn respond(pages: &Pages, request: &Request) -> Response {
    let Some(route) = Route::from_path(&request.path) else {
        return Response::text(
            StatusCode::NOT_FOUND,
            format!("no page {}\n\n{INDEX}", request.path),
        );
    };
    if !["GET", "HEAD"].contains(&request.method.as_str()) {
        return Response::text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    }
    match pages {
        Pages::Serving(admin) => serving(admin, route, request).await,
        Pages::StandingBy(standby) => standing_by(standby, route, request),
    }
}

async fn serving(admin: &Admin, route: Route, request: &Request) -> Response {
    match route {
        Route::Index => Response::text(StatusCode::OK, INDEX),
        Route::Health => report(&probe::health(&admin.state, &admin.last_round)),
        Route::Readiness => {
            let state = admin.state.borrow().clone();
            report(&probe::readiness(&state, &admin.registrations.borrow()))
        }
        Route::Metrics => {
            admin.holders.refresh().await;
            exposition(&admin.registry, request)
        }
        Route::Devices => devices(admin),
        Route::File(asset) => file(asset),
        Route::PageRedirect => redirect_to_page(),
        Route::State => {
            admin.holders.refresh().await;
            let after = Revision::in_query(&request.query);
            let body = admin.board.json(after);
            Response { status: StatusCode::OK, content_type: JSON, body }
        }
    }
}

/// Pages of an agent on standby, which knows no devices yet.
fn standing_by(standby: &Standby, route: Route, request: &Request) -> Response {
    match route {
        Route::Index => Response::text(StatusCode::OK, INDEX),
        Route::Health => report(&standby.health()),
        Route::Readiness => report(&standby.readiness()),
        Route::Metrics => exposition(&metrics::standby_registry(), request),
        Route::File(asset) => file(asset),
        Route::PageRedirect => redirect_to_page(),
        Route::Devices | Route::State => {
            Response::text(StatusCode::SERVICE_UNAVAILABLE, standby.to_string())
        }
    }
}

fn exposition(registry: &Registry, request: &Request) -> Response {
    let format = Format::negotiate(&request.accept);
    match format.encode(registry) {
        Ok(body) => {
            let (content_type, body) = (format.content_type(), body.into());
            Response { status: StatusCode::OK, content_type, body }
        }
        Err(error) => internal_error(&error),
    }
}

/// Redirect by a relative address, which works behind a proxy too.
fn redirect_to_page() -> Response {
    let body = "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url=page/\">\n".into();
    Response { status: StatusCode::OK, content_type: "text/html; charset=utf-8", body }
}

fn file(asset: &Asset) -> Response {
    let body = Bytes::from_static(asset.text.as_bytes());
    Response { status: StatusCode::OK, content_type: asset.media_type, body }
}

fn devices(admin: &Admin) -> Response {
    let mut inventory = admin.state.borrow().inventory.clone();
    if !admin.disclosed.contains(&Disclosed::Serials) {
        for device in &mut inventory.devices {
            device.attributes.retain(|name, _| !is_serial_number(name));
        }
    }
    match serde_json::to_string_pretty(&inventory) {
        Ok(body) => {
            let body = (body + "\n").into();
            Response { status: StatusCode::OK, content_type: JSON, body }
        }
        Err(error) => internal_error(&error),
    }
}

/// Matches `serial`, `serialNumber`, `usbSerial`: configurations choose their own attribute names.
fn is_serial_number(name: &AttributeName) -> bool {
    name.name().to_ascii_lowercase().contains("serial")
}

fn report(report: &ProbeReport) -> Response {
    let status = if report.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Response::text(status, report.to_string())
}

fn internal_error(error: &dyn std::error::Error) -> Response {
    Response::text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the page: {error}\n"))
}

// === impl Route ===

impl Route {
    fn from_path(path: &str) -> Option<Self> {
        Some(match path {
            "/" => Self::Index,
            "/healthz" => Self::Health,
            "/readyz" => Self::Readiness,
            "/metrics" => Self::Metrics,
            "/devices" => Self::Devices,
            "/page" => Self::PageRedirect,
            "/page/state" => Self::State,
            _ => Self::File(Asset::find(path.strip_prefix("/page/")?)?),
        })
    }
}
